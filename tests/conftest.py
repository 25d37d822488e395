"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE.

`ci` repeats itself, `thorough` looks further, `mutants` is content with the first example that fails.
"""

import os
import signal

from hypothesis import Phase, settings

pytest_plugins = ["tests.watchdog", "tests.skips", "tests.stress"]

# As ps_worker sets it, which grpc reads once: a test of the servers may be what imports grpc first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell starts background jobs with SIGINT ignored, which children inherit: no Ctrl-C could be tested then.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=200)
settings.register_profile("thorough", deadline=None, max_examples=2000, print_blob=True)
settings.register_profile(
    "mutants",
    settings.get_profile("ci"),
    phases=[Phase.explicit, Phase.generate],
    database=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
