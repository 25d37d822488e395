"""Memory of a worker over which shards lay theirs."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ps_wire.sockets import shared_memory
from ps_worker.memory import os_memory as memory_module
from ps_worker.memory.os_memory import OverlaidMemory, can_overlay
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not can_overlay(), reason="no memory to be overlaid here")

PAGE = mmap.PAGESIZE
PAGES = 8


@pytest.fixture
def shard() -> Iterator[tuple[int, mmap.mmap]]:
    descriptor, memory = shared_memory.create_readable(PAGES * PAGE)
    yield descriptor, memory
    os.close(descriptor)


def laid(descriptor: int) -> OverlaidMemory:
    """Pages 2..5 are the shard's first four."""
    memory = OverlaidMemory(PAGES * PAGE)
    memory.lay(descriptor, at=2 * PAGE, start=0, nbytes=4 * PAGE)
    return memory


def test_what_is_laid_shows_what_the_shard_writes(shard: tuple[int, mmap.mmap]):
    descriptor, theirs = shard
    memory = laid(descriptor)
    for value in (b"a", b"b"):
        theirs[PAGE : PAGE + 1] = value
        assert memory[3 * PAGE : 3 * PAGE + 1] == value
    assert memory[: 2 * PAGE] == bytes(2 * PAGE)
    assert memory[6 * PAGE :] == bytes(2 * PAGE)


def test_what_is_written_here_stays_here_and_is_found_and_undone(shard: tuple[int, mmap.mmap]):
    descriptor, theirs = shard
    memory = laid(descriptor)
    assert memory[2 * PAGE :] == bytes(6 * PAGE)  # read, which is no write
    assert not memory.written(at=2 * PAGE, nbytes=4 * PAGE)
    memory[4 * PAGE] = 7
    assert theirs[:] == bytes(PAGES * PAGE)
    assert memory.written(at=2 * PAGE, nbytes=4 * PAGE)
    assert not memory.written(at=2 * PAGE, nbytes=2 * PAGE)
    theirs[2 * PAGE] = 9
    assert memory[4 * PAGE] == 7  # its own page hides the shard's
    memory.restore(at=2 * PAGE, nbytes=4 * PAGE)
    assert memory[4 * PAGE] == 9
    assert not memory.written(at=2 * PAGE, nbytes=4 * PAGE)


def test_owned_memory_keeps_its_values_and_its_address(shard: tuple[int, mmap.mmap]):
    descriptor, theirs = shard
    theirs[: 4 * PAGE] = bytes(range(256)) * (4 * PAGE // 256)
    memory = laid(descriptor)
    view = np.frombuffer(memory, dtype=np.uint8)
    before = view.copy()
    memory.own(at=2 * PAGE, nbytes=4 * PAGE)
    theirs[: 4 * PAGE] = bytes(4 * PAGE)
    assert (view == before).all()
    view[2 * PAGE] = 1
    assert theirs[0] == 0


@pytest.mark.parametrize("moved", [False, True])
def test_a_page_of_the_shards_that_the_kernel_moves_was_not_written_to(
    shard: tuple[int, mmap.mmap], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
):
    """While it is moved, the page map calls it swapped; one of ours that is swapped is none of a file."""
    memory, pages = laid(shard[0]), tmp_path / "pagemap"
    with pages.open("wb") as file:
        file.seek(memory._address // PAGE * 8)
        file.write(np.full(PAGES, (3 if moved else 2) << 61, dtype=np.uint64).tobytes())
    monkeypatch.setattr(memory_module, "PAGES", pages)
    assert memory.written(at=2 * PAGE, nbytes=4 * PAGE) is not moved


def test_dropped_memory_shows_zeros(shard: tuple[int, mmap.mmap]):
    descriptor, theirs = shard
    theirs[0] = 5
    memory = laid(descriptor)
    memory.drop()
    assert memory[:] == bytes(PAGES * PAGE)
    assert theirs[0] == 5


def test_a_mapping_that_the_system_refuses_is_an_error():
    memory = OverlaidMemory(PAGES * PAGE)
    with pytest.raises(OSError, match="mapping 4096 bytes of shared memory"):
        memory.lay(-1, at=0, start=0, nbytes=PAGE)
    assert memory[:] == bytes(PAGES * PAGE)


def test_a_thread_that_reads_while_memory_becomes_private_sees_its_values_all_along():
    """Also what it has shown before: a forward may be running when a shard's weights come another way."""
    nbytes, stop = 16 << 20, threading.Event()
    descriptor, theirs = shared_memory.create_readable(nbytes)
    np.frombuffer(theirs, dtype=np.uint8)[:] = 1
    memory = OverlaidMemory(nbytes)
    memory.lay(descriptor, at=0, start=0, nbytes=nbytes)
    view = np.frombuffer(memory, dtype=np.uint64)
    others: list[int] = []

    def read() -> None:
        while not stop.is_set():
            others.extend(view[view != 0x0101010101010101].tolist()[:1])

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        memory.lay(descriptor, at=0, start=0, nbytes=nbytes)
        memory.own(at=0, nbytes=nbytes)
    stop.set()
    reader.join(LIMIT_S)
    os.close(descriptor)
    assert not others
