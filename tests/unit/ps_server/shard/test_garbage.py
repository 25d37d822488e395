"""While tables are opened the collector of cyclic garbage holds nobody up."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ps_server.coordinator.member_streams import _table_of
from ps_server.shard.garbage import CollectorPause
from ps_server.shard.orders import execute_order
from ps_wire.frames.messages import table_to_proto
from ps_wire.spec.table import BucketOptions
from ps_wire.v1 import coordinator_pb2 as pb
from tests.unit.ps_server.shard.admitted import shard_with
from tests.unit.ps_server.tables import group, table_spec


@pytest.fixture
def collector() -> Iterator[None]:
    """On when a test begins, and as it was afterwards."""
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.usefixtures("collector")
def test_as_long_as_one_of_several_lasts_it_is_off():
    """On again once the last is over, also after an error."""
    pause, seen = CollectorPause(), []

    def fail() -> None:
        with pause:
            with pause:
                seen.append(gc.isenabled())
            seen.append(gc.isenabled())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (seen, gc.isenabled()) == ([False, False], True)


@pytest.mark.usefixtures("collector")
def test_one_that_was_off_stays_off():
    """A script in whose process the server is may have switched it off."""
    gc.disable()
    with CollectorPause():
        pass
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_while_a_table_of_thousands_of_partitions_is_opened_nothing_is_looked_through():
    """Each look holds all threads, the event loop's too, for as long as it takes; one comes afterwards."""
    shard = shard_with()
    spec = table_spec(
        "SGD", group(lr=0.1), shapes=((1024 * 4000,),), buckets=BucketOptions(partition_bytes=4096)
    )
    order = pb.Order(number=1, open_table=pb.OpenTable(job="j", table=table_to_proto(spec)))
    looks: list[str] = []
    look = lambda phase, _: looks.append(phase)  # noqa: E731 - the very object that is removed again
    gc.callbacks.append(look)
    try:
        done = execute_order(shard, order)
        during = list(looks)
    finally:
        gc.callbacks.remove(look)
    assert not done.HasField("refused")
    assert len(shard.table("j", 0).partitions()) == 4000
    assert during.count("start") <= 1


def test_a_table_that_others_have_made_is_that_very_one():
    """So the event loop compares no parameters; another one is compared, and refused there."""
    spec, other = (table_spec("SGD", group(lr=0.1), shapes=((numel,),)) for numel in (10, 11))
    message = pb.MakeTable(table=table_to_proto(spec))
    assert _table_of(message, [spec]) is spec
    for known in ([], [other]):
        assert _table_of(message, known) == spec
