"""Memory that a worker shares: what the shard keeps of it is bounded."""

from __future__ import annotations

import pytest

from ps_server.agreement.gate import gate_of
from ps_server.shard.table.table import ShardTable
from ps_server.shard.transport import shared_regions
from ps_server.shard.transport.shared_regions import SharedRegions
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import Kind
from ps_wire.sockets.shared_memory import AVAILABLE, Layout
from ps_wire.spec.consistency import ASP
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import PAGE_BYTES, BucketOptions
from ps_worker.memory.os_memory import SharedMemory
from tests.unit.ps_server.tables import Kept, group, table_spec

RANKS, PARTITIONS = 3, 8


@pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")
def test_places_are_kept_up_to_a_number_and_made_anew_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group's descriptors cost their sender nothing, and each place here takes 1.3 KB."""
    small = BucketOptions(partition_bytes=PAGE_BYTES)
    spec = table_spec("SGD", group(lr=1.0), shapes=((PARTITIONS * PAGE_BYTES // 4,),), buckets=small)
    table = ShardTable(job="j", spec=spec, plan=Plan(spec, 1), shard=0, gate=gate_of(ASP()))
    monkeypatch.setattr(shared_regions, "MAX_PLACES", 2 * RANKS)
    regions = SharedRegions(Kept())
    memory = [SharedMemory(Layout(table.plan).nbytes) for _ in range(2 + RANKS)]
    share = {"hyper": RANKS, "descriptors": tuple(it.descriptor for it in memory)}
    regions.receive(wire.Frame(kind=Kind.SHARE, **share), table)

    def terms(partition: int, flags: int) -> tuple[object, ...]:
        push = wire.Frame(kind=Kind.PUSH, partition=partition, flags=wire.SHARED | flags)
        (filled,) = regions.filled(push)
        assert [len(it) for it in filled.terms] == [PAGE_BYTES] * len(filled.terms)
        return filled.terms

    def kept(flags: int) -> list[bool]:
        first, second = ([terms(at, flags) for at in range(PARTITIONS)] for _ in range(2))
        return [one[0] is two[0] for one, two in zip(first, second, strict=True)]

    assert kept(wire.RANKS) == [True, True] + [False] * (PARTITIONS - 2)
    assert kept(0) == [False] * PARTITIONS

    copies: list[object] = []
    for partition in (0, 1, 0, 1):
        with regions.asking(0, partition):
            assert regions.write_along(0, partition, 1, lambda place: copies.append(place) is None)
    assert copies[0] is not copies[2]
    assert copies[1] is not copies[3]
