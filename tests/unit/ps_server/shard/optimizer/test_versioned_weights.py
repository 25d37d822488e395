"""Weights that are still being sent when they change: each reply is of its version, and no apply waits."""

from __future__ import annotations

import struct

import pytest
import torch

from ps_server.shard.optimizer.spares import KEPT, Spares
from ps_server.shard.optimizer.versioned_weights import VersionedWeights
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.frames.frame import Kind
from ps_wire.spec.consistency import parse
from tests.unit.ps_server.tables import Push, Servers, changed, draw, group, same, table_spec

HYPER = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.1}}


class Stalled:
    """An `Outlet` whose peer reads nothing: it holds what it is given until `drain`."""

    def __init__(self) -> None:
        self.held: list[Message] = []

    def send(self, message: Message) -> None:
        message.hold()
        self.held.append(message)

    def drain(self) -> list[wire.Frame]:
        """What leaves now, as it lies in memory by now."""
        frames = [wire.decode(wire.encode(message.frame)) for message in self.held]
        for message in self.held:
            message.release()
        self.held.clear()
        return frames


def reply(weights: VersionedWeights) -> Message:
    message = Message(wire.Frame(kind=Kind.PULLED, payload=weights.now.numpy().data.cast("B")))
    message.hold()
    weights.sent(message)
    return message


def test_without_a_reply_on_its_way_the_memory_stays():
    weights = VersionedWeights(torch.ones(8))
    before = weights.now.data_ptr()
    assert not weights.make_writable()
    reply(weights).release()
    assert not weights.make_writable()
    assert weights.now.data_ptr() == before


def test_a_held_reply_keeps_its_values_and_the_weights_move_on():
    weights = VersionedWeights(torch.ones(8))
    held = reply(weights)
    assert weights.make_writable()
    weights.now.add_(1)
    assert not weights.make_writable()  # the new memory is read by nobody
    assert held.encoded().endswith(torch.ones(8).numpy().tobytes())
    assert torch.equal(weights.now, torch.full((8,), 2.0))


def test_a_reply_that_is_held_keeps_its_values_though_a_later_one_has_left():
    """Each of those that leave from this memory counts, not the last one alone."""
    weights = VersionedWeights(torch.ones(8))
    first, second = reply(weights), reply(weights)
    second.release()
    assert weights.make_writable()
    weights.now.add_(1)
    assert first.encoded().endswith(torch.ones(8).numpy().tobytes())


def test_memory_that_was_left_is_used_again():
    """One peer that is always late costs one partition more, not one a version."""
    weights = VersionedWeights(torch.zeros(8))
    seen = set()
    for _ in range(10):
        held = reply(weights)
        assert weights.make_writable()
        seen.add(weights.now.data_ptr())
        held.release()
    assert len(seen) == 2


class Leaving(Message):
    """A reply that has left when it has been looked at: its peer has read it on another thread meanwhile."""

    @property
    def held(self) -> bool:
        was = super().held
        if was:
            self.release()
        return was


@pytest.mark.parametrize(
    "move",
    [VersionedWeights.next, VersionedWeights.make_writable],
    ids=["the next version is made of it", "it is copied"],
)
def test_what_the_next_version_is_made_of_is_no_other_partitions_memory_yet(move):
    """Its reply leaves just then. What another partition writes there would be in these weights."""
    spares = Spares()
    weights = VersionedWeights(torch.ones(8), spares)
    before = weights.now
    held = Leaving(wire.Frame(kind=Kind.PULLED, payload=before.numpy().data.cast("B")))
    held.hold()
    weights.sent(held)
    move(weights)
    assert weights.now is not before
    assert not held.held
    assert spares.take(before) is not before
    assert weights.room() is before  # once this partition looks again


def test_a_version_that_is_written_ahead_shows_when_it_is_turned_to_and_two_memories_take_turns():
    weights = VersionedWeights(torch.zeros(8))
    seen = set()
    for version in range(1, 7):
        room = weights.room()
        assert room is weights.room()
        room.fill_(version)
        assert torch.equal(weights.now, torch.full((8,), version - 1.0))
        assert weights.wrote_ahead(True)
        assert weights.next() is room
        assert not weights.ahead
        seen.add(room.data_ptr())
    assert len(seen) == 2


def test_partitions_of_one_size_share_the_memory_that_they_write_ahead_to():
    """Also where a step was not finite: what was written then is nobody's."""
    spares = Spares()
    every = [VersionedWeights(torch.full((8,), float(number)), spares) for number in range(4)]
    before = {weights.now.data_ptr() for weights in every}
    for version in range(1, 4):
        for number, weights in enumerate(every):
            weights.room().fill_(float("nan"))
            assert not weights.wrote_ahead(False)
            weights.room().fill_(10 * version + number)
            weights.wrote_ahead(True)
            weights.next()
        assert [weights.now[0].item() for weights in every] == [10 * version + number for number in range(4)]
    assert len({weights.now.data_ptr() for weights in every} | before) == 5


def test_memory_that_a_reply_leaves_from_is_no_room_for_a_version_ahead():
    weights = VersionedWeights(torch.zeros(8))
    held = reply(weights)
    for version in (1.0, 2.0, 3.0):
        weights.room().fill_(version)
        weights.wrote_ahead(True)
        weights.next()
    assert held.encoded().endswith(torch.zeros(8).numpy().tobytes())


def test_memory_that_replies_left_from_is_used_for_versions_ahead():
    """A peer that is always late costs one partition more, not one a version."""
    weights = VersionedWeights(torch.zeros(8))
    seen, late = set(), reply(weights)
    for version in range(1, 9):
        weights.room().fill_(version)
        weights.wrote_ahead(True)
        seen.add(weights.next().data_ptr())
        late.release()
        late = reply(weights)
    assert len(seen) == 2


def test_weights_that_are_carried_after_a_version_was_written_ahead_are_those_of_before():
    weights = VersionedWeights(torch.zeros(8))
    weights.room().fill_(1.0)
    weights.wrote_ahead(True)
    weights.carry()
    assert not weights.ahead
    assert torch.equal(weights.next(), torch.zeros(8))


def test_more_spares_than_a_table_can_use_are_not_kept():
    """Many replies that are late at once are no reason to keep their memory."""
    spares = Spares()
    every = [torch.zeros(8) for _ in range(2 * KEPT)]
    for memory in every:
        spares.give(memory)
    again = [spares.take(torch.empty(8)) for _ in every]
    assert sum(any(memory is one for one in every) for memory in again) == KEPT


@pytest.mark.parametrize("optimizer", HYPER)
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_replies_that_leave_late_are_of_their_versions_and_steps_stay_exact(optimizer: str, consistency: str):
    """A reader that stalls over several steps; the weights are those of a run without it, to the bit."""
    spec = table_spec(optimizer, group(**HYPER[optimizer]))
    start = draw(spec, 1)
    hyper = spec.optimizer.hyperparameters
    quiet, stalled = (Servers(spec, start, consistency=parse(consistency)) for _ in range(2))
    outlet = Stalled()
    expected: dict[int, bytes] = {}
    (table,) = stalled.shards
    for step in range(4):
        for index in table.partitions():
            meta = struct.pack("<I", index)
            frame = wire.Frame(kind=Kind.PULL, flags=wire.READ, worker=5, step=step, meta=meta)
            table.receive(frame, outlet, member=False)
        expected[step] = b"".join(cell.values.now.numpy().tobytes() for cell in table.cells())
        push = [Push(worker=0, gradients=draw(spec, 10 + step))]
        for servers in (quiet, stalled):
            servers.step(step, push, changed(hyper, lr=0.1 / (1 + step)))
    ours, theirs = stalled.pull(0, 4), quiet.pull(0, 4)
    assert theirs is not None
    assert same(ours, theirs)
    arrived: dict[int, bytes] = {}
    for frame in outlet.drain():
        assert frame.version == frame.step
        arrived[frame.step] = arrived.get(frame.step, b"") + bytes(frame.payload)
    assert arrived == expected
