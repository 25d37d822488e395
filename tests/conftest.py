"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE.

`ci` repeats itself, `thorough` looks further, `mutants` is content with the first example that fails.
"""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
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

LOGGERS = [logging.getLogger(name) for name in ("ps_server", "ps_worker", "ps_lab", "grpc", "asyncio")]


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """What a command sets up in this process ends with the test: levels, handlers, propagation."""
    before = [(it, it.level, [*it.handlers], it.propagate) for it in LOGGERS]
    yield
    for logger, level, handlers, propagate in before:
        if (logger.level, logger.handlers, logger.propagate) != (level, handlers, propagate):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
