"""Ranks of one host read each other's gradients where they lie, or all of them do without."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ps_wire.sockets import shared_memory
from ps_worker.group import lent_gradients
from ps_worker.group.lent_gradients import FlatGradients, borrow, can_lend
from ps_worker.memory.os_memory import SharedMemory
from tests.unit.ps_worker.group.wires import town

pytestmark = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="there is no shared memory here")
STARTS = (0, 4096)
SIZES = (100, 7)


@contextmanager
def flats(count: int) -> Iterator[list[FlatGradients]]:
    memories = [SharedMemory(8192) for _ in range(count)]
    yield [
        FlatGradients(
            tensors=[
                torch.frombuffer(memory, dtype=torch.float32, count=size, offset=start)
                for start, size in zip(STARTS, SIZES, strict=True)
            ],
            starts=STARTS,
            nbytes=8192,
            descriptor=memory.descriptor,
        )
        for memory in memories
    ]


def test_what_a_rank_writes_the_others_read_at_once() -> None:
    with flats(3) as own, town(3) as group:
        lent = group.run(lambda rank: borrow(group.channels[rank], "table 0", own[rank]))
        for rank, flat in enumerate(own):
            for tensor in flat.tensors:
                tensor.fill_(rank + 1.0)

        for reader in range(3):
            for rank in range(3):
                parts = lent[reader].tensors[rank]
                assert [float(it.sum()) for it in parts] == [
                    (rank + 1.0) * size for size in (SIZES if rank != reader else ())
                ]
        for reader in range(3):
            given = [os.fstat(it).st_ino for it in lent[reader].descriptors]
            assert given == [os.fstat(it.descriptor).st_ino for it in own if it.descriptor is not None]


def test_descriptors_for_others_are_there_of_all_ranks_or_of_none_and_are_closed_with_what_is_lent() -> None:
    with flats(3) as own, town(3) as group:
        near = [{0, 1}, {0, 1}, {2}]  # two hosts
        lent = group.run(lambda rank: borrow(group.channels[rank], "table 0", own[rank], near[rank]))
        assert [it.descriptors for it in lent] == [()] * 3

        lent = group.run(lambda rank: borrow(group.channels[rank], "table 0", own[rank]))
        kept = [it for one in lent for it in one.descriptors]
        assert len(set(kept)) == 9
        del lent
        gc.collect()
        for descriptor in kept:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)


@pytest.mark.parametrize("lacks", ["descriptor", "another process", "size"])
def test_where_one_rank_has_nothing_to_lend_none_borrows(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with flats(3) as own, town(3) as group:
        if lacks == "descriptor":
            own[1] = FlatGradients(tensors=own[1].tensors, starts=STARTS, nbytes=8192)
        elif lacks == "size":
            small = SharedMemory(4096)
            own[1] = FlatGradients(tensors=(), nbytes=4096, descriptor=small.descriptor)
        else:  # a container of its own: its numbers mean another process here
            monkeypatch.setattr(lent_gradients.os, "getpid", lambda: 1 if os.getuid() == 0 else os.getppid())
        assert group.run(lambda rank: borrow(group.channels[rank], "table 0", own[rank])) == [None] * 3


def test_a_descriptor_that_means_other_memory_is_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes and descriptors mean others in another container."""
    fstat, other = os.fstat, SharedMemory(8192)

    def said(descriptor: int) -> os.stat_result:
        return fstat(other.descriptor if descriptor == own[1].descriptor else descriptor)

    with flats(2) as own, town(2) as group:
        monkeypatch.setattr(lent_gradients.os, "fstat", said)
        assert group.run(lambda rank: borrow(group.channels[rank], "table 0", own[rank])) == [None] * 2


def test_ranks_of_one_host_find_out_that_they_can_lend() -> None:
    with town(2) as group:
        assert group.run(lambda rank: can_lend(group.channels[rank])) == [True, True]
