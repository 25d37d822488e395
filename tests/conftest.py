"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE.

`ci` repeats itself, `thorough` looks further, `mutants` is content with the first example that fails.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from tests.integration.processes import Process, Start, Zygote

pytest_plugins = [
    "tests.watchdog",
    "tests.left_behind",
    "tests.skips",
    "tests.stress",
    "tests.late",
    "tests.longest_first",
]

# Before torch is imported. Two threads of each process on two cores spin at the end of every operation: two
# files of servers in the process took 57 s of a core, and take 8.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As ps_worker sets it, which grpc reads once: a test of the servers may be what imports grpc first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Imported once for all processes of the examples: else 1.5 s of a core in each.
OF_EXAMPLES = ("sklearn.datasets", "sklearn.model_selection")

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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is collected while tests are: nearly all that is made stays, and is looked at in vain.

    Behind it, what all tests share lives as long as the process: no collection of garbage looks at it again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected in this test, which comes to the end of the stack: finalizers would fail there.

    Those of whatever an earlier test has left, so that the test would fail now and then.
    """
    gc.disable()
    yield
    gc.enable()


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


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Starts commands cheaply; one for all tests of this process, since its start costs 5 s of a core."""
    from tests.integration.processes import Zygote  # noqa: PLC0415 - tests without processes need none of it

    made = Zygote(*OF_EXAMPLES)
    yield made
    made.close()


@pytest.fixture
def spawn(zygote: Zygote) -> Iterator[Start]:
    """Starts commands; what still runs when the test ends is killed. A failure shows all they said."""
    started: list[Process] = []

    def begin(*command: str, **environment: str) -> Process:
        started.append(zygote.start(*command, environment=environment))
        return started[-1]

    yield begin
    for process in started:
        end = process.end if process.is_over else f"{process.name} was killed when the test ended"
        print(f"--- {end}\n{process.text}")
        process.kill()
