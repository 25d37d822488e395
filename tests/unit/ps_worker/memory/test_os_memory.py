"""Memory that forked children do not keep."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory import os_memory
from ps_worker.memory.os_memory import SharedMemory, private_memory
from tests.until import LIMIT_S


def in_child(body: Callable[[], bool]) -> bool:
    """What `body` returns in a forked child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside other threads
        pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if body() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_private_memory_is_zeros_at_a_page_boundary(dtype: torch.dtype):
    made = private_memory(1000 * dtype.itemsize, dtype)
    assert made.shape == (1000,)
    assert made.dtype is dtype
    assert made.data_ptr() % mmap.PAGESIZE == 0
    assert torch.equal(made, torch.zeros(1000, dtype=dtype))
    made += 1
    assert torch.equal(made, torch.ones(1000, dtype=dtype))


def test_no_bytes_are_an_empty_tensor():
    assert private_memory(0, torch.float32).shape == (0,)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="wiping on fork is Linux's")
def test_a_forked_child_sees_zeros_and_the_parent_what_it_wrote():
    made, ordinary = private_memory(1 << 16, torch.float32), torch.zeros(4)
    made += 7
    ordinary += 7
    assert in_child(lambda: made[0].item() == 0.0 and made[-1].item() == 0.0 and ordinary[0].item() == 7.0)
    assert torch.equal(made, torch.full_like(made, 7.0))


def test_a_view_keeps_the_memory_and_its_end_gives_it_back():
    size = 64 << 20
    view = private_memory(size, torch.float32).fill_(3)[5:10]
    gc.collect()
    assert view.tolist() == [3.0] * 5
    held = resident_bytes()
    del view
    gc.collect()
    assert resident_bytes() < held - size // 2


def test_where_the_system_cannot_wipe_it_is_plain_memory(monkeypatch: pytest.MonkeyPatch):
    """An advice that no system knows is refused, as an older Linux refuses this one."""
    monkeypatch.setattr(os_memory, "_MADV_WIPEONFORK", 9999)
    made = private_memory(400, torch.float32)
    assert torch.equal(made, torch.zeros(100))
    assert in_child(lambda: made[0].item() == 0.0)


@pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")
@pytest.mark.parametrize(("wiped", "seen"), [(True, 0), (False, 7)])
def test_what_a_forked_child_writes_into_shared_memory_is_its_own(wiped: bool, seen: int):
    """Gradients are zeros in the child, weights are there; nobody else sees what it writes."""
    made = SharedMemory(1 << 14, wiped=wiped)  # so small that torch starts no threads, which forks lose
    values = torch.frombuffer(made, dtype=torch.uint8)
    values += 7

    def body() -> bool:
        found = bool((values == seen).all())
        values.fill_(99)
        return found and os.fstat(made.descriptor).st_rdev == Path(os.devnull).stat().st_rdev

    assert in_child(body)
    assert bool((values == 7).all())


@pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")
def test_a_forked_child_reads_later_weights_on_pages_that_it_has_not_written_to():
    """It maps the same memory privately: a copy made before the fork is what stays."""
    values = torch.frombuffer(SharedMemory(2 * mmap.PAGESIZE), dtype=torch.uint8)
    values += 1
    (ready, says_ready), (written, says_written) = os.pipe(), os.pipe()

    def writes() -> None:
        os.read(ready, 1)
        values.fill_(2)
        os.write(says_written, b"x")

    writer = threading.Thread(target=writes)
    writer.start()

    def body() -> bool:
        values[0] = 9
        os.write(says_ready, b"x")
        os.read(written, 1)
        return values[1].item() == 1 and values[-1].item() == 2

    assert in_child(body)
    writer.join(LIMIT_S)
    for descriptor in (ready, says_ready, written, says_written):
        os.close(descriptor)


@pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")
def test_weights_stay_their_owners_in_a_forked_child_when_only_they_are_left():
    """A model outlives its worker; who forks then must not share it with the child."""
    values = torch.frombuffer(SharedMemory(1 << 16), dtype=torch.uint8)
    gc.collect()

    def body() -> bool:
        values.fill_(99)
        return True

    assert in_child(body)
    assert not values.any()
