"""Frames behind a push: what asks for its weights goes with it, all else keeps its turn."""

from __future__ import annotations

import os

import pytest

from ps_server.shard.transport.behind import MAX_FRAMES, Behind
from ps_wire.errors import FrameMalformed
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_wire.frames.frame import Frame, Kind


class Peer:
    """Frames and errors that come one behind the other."""

    def __init__(self, *coming: Frame | Exception) -> None:
        self.coming = list(coming)

    def received(self, *, reads: bool = False) -> Frame | None:
        if not self.coming:
            return None
        found = self.coming.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def push(partition: int, step: int = 0) -> Frame:
    return Frame(kind=Kind.PUSH, worker=1, incarnation=2, step=step, partition=partition)


def pull(*partitions: int, step: int = 1, **fields: object) -> Frame:
    asked = Frame(kind=Kind.PULL, worker=1, incarnation=2, step=step, partition=partitions[0])
    return asked.but(meta=meta.listed(partitions), **fields)


def test_each_partition_is_taken_away_once_and_the_rest_keeps_its_turn():
    behind = Behind(Peer(push(3), pull(0, 3, 1, 2)))
    assert behind.asking(push(1)) == pull(1)
    assert behind.asking(push(1)) is None
    assert behind.asking(push(0)) == pull(0)
    assert [behind.next() for _ in range(3)] == [push(3), pull(3, 2), None]


def test_what_was_taken_whole_is_not_there_any_more():
    behind = Behind(Peer(pull(5), push(0, step=1)))
    assert behind.asking(push(5)) == pull(5)
    assert behind.next() == push(0, step=1)


def test_what_comes_while_pushes_are_taken_is_found():
    peer = Peer()
    behind = Behind(peer)
    assert behind.asking(push(0)) is None
    peer.coming.append(pull(0, 1))
    assert behind.asking(push(1)) == pull(1)
    assert behind.next() == pull(0)


@pytest.mark.parametrize(
    "asked",
    [
        pull(0, flags=wire.READ),
        pull(0, flags=wire.CUT),
        pull(0, step=2),
        pull(0, codec=1),
        pull(0, table=1),
        pull(0, worker=2),
        pull(0, rank=1),
        pull(0, incarnation=3),
        pull(0).but(meta=b"123"),
        push(0),
    ],
)
def test_what_does_not_ask_for_what_the_push_makes_keeps_its_turn(asked: Frame):
    behind = Behind(Peer(asked))
    assert behind.asking(push(0)) is None
    assert behind.next() is asked


def test_what_is_no_frame_is_said_behind_the_frames_before_it():
    behind = Behind(Peer(pull(0), FrameMalformed("bytes"), pull(1)))
    assert behind.asking(push(1)) is None
    assert behind.next() == pull(0)
    with pytest.raises(FrameMalformed, match="bytes"):
        behind.next()


def test_no_more_frames_are_kept_than_are_looked_at():
    peer = Peer(*[push(number) for number in range(MAX_FRAMES + 5)])
    behind = Behind(peer)
    behind.asking(push(0))
    assert len(peer.coming) == 5
    assert [behind.next().partition for _ in range(MAX_FRAMES + 5)] == list(range(MAX_FRAMES + 5))


def test_descriptors_of_what_is_not_taken_are_closed():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    behind = Behind(Peer(Frame(kind=Kind.SHARE, descriptors=(writing,))))
    behind.asking(push(0))
    behind.close()
    assert os.read(reading, 1) == b""
    os.close(reading)
