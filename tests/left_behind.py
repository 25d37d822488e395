"""A plugin of pytest: a test that changes what all tests of its process share, and leaves it so, fails.

Another test would fail by it, or pass, in another order; and each process of xdist has an order of its own.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
OURS = "PS_"  # libraries set variables of their own when they are first imported
ENVIRONMENT = "the environment"
OF_PYTEST = b"PYTEST_CURRENT_TEST"


def state() -> dict[str, object]:
    """What there is now, by names for people."""
    now: dict[str, object] = {
        "the working directory": _folder(),
        "the first of sys.path": sys.path[:1],  # libraries add to its end
        "sys.argv": tuple(sys.argv),
        "the garbage collector": gc.isenabled(),
        "the interval between two switches of threads": sys.getswitchinterval(),
        "the limit on descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        "the default timeout of sockets": socket.getdefaulttimeout(),
    }
    now |= {f"the handler of {it.name}": signal.getsignal(it) for it in SIGNALS}
    now[ENVIRONMENT] = {name: value for name, value in os.environb.items() if name != OF_PYTEST}
    if (torch := sys.modules.get("torch")) is not None:
        now["torch's default dtype"] = torch.get_default_dtype()
        now["torch's deterministic algorithms"] = torch.are_deterministic_algorithms_enabled()
        now["torch's threads"] = torch.get_num_threads()
        now["torch's gradients"] = torch.is_grad_enabled()
    return now


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - the same text again, while nobody goes elsewhere
    except FileNotFoundError:
        return "removed"


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """What is another or gone, and which variables of ours have come, for people."""
    if before == after:
        return []
    before, after = _named(before), _named(after)
    come = {name for name in after.keys() - before.keys() if name.startswith(f"${OURS}")}
    return [
        f"{name}: {before.get(name, 'unset')!r} before, {after.get(name, 'unset')!r} now"
        for name in sorted(before.keys() | come)
        if before.get(name) != after.get(name)
    ]


def _named(now: Mapping[str, object]) -> dict[str, object]:
    """With each variable of the environment by itself."""
    environment = now[ENVIRONMENT]
    assert isinstance(environment, dict)
    variables = {f"${os.fsdecode(name)}": os.fsdecode(value) for name, value in environment.items()}
    return {name: it for name, it in now.items() if name != ENVIRONMENT} | variables


@contextmanager
def unchanged() -> Iterator[None]:
    """Raises AssertionError where it is not at the end as it was at the beginning."""
    before = state()
    yield
    found = changes(before, state())
    assert not found, "left behind: " + "; ".join(found)


@pytest.fixture(autouse=True)
def _left_behind() -> Iterator[None]:
    with unchanged():
        yield
