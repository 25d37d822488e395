"""`--stress`; Hypothesis profiles, by HYPOTHESIS_PROFILE: `ci` repeats itself, `thorough` goes further."""

import os
import signal

import pytest
from hypothesis import settings

from tests import stress

# As ps_worker sets it, which grpc reads once: a test of the servers may be what imports grpc first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell starts background jobs with SIGINT ignored, which children inherit: no Ctrl-C could be tested then.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=200)
settings.register_profile("thorough", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stress",
        nargs="?",
        const="",
        metavar="SEED",
        help="threads change all the time, and give way at locks, as drawn from SEED; see tests/stress.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    text = config.getoption("--stress")
    if text is not None:
        seed = stress.seed_of(text)
        config.option.stress = str(seed)  # of processes of xdist, too
        stress.begin(seed)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("--stress") is not None and not hasattr(config, "workerinput"):
        config.get_terminal_writer().line(f"stress: run it again with --stress={config.option.stress}")
