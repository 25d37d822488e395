"""A dealer's word on how far its worker has come, and what is gone through again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ps_wire.errors import Evicted
from ps_wire.spec.epochs import EpochPiece
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.epoch_dealer import EpochDealer
from ps_worker.data.position import Position
from ps_worker.job.job_link import JobLink
from tests.component.loaders import Unmoved

WHOLE = EpochPiece(epoch=0, place=2, ranks=2, count=4)


class Coordinator:
    """A `PieceSource`: it gives the same share, and notes what it is asked and told."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.evicts = False
        self.asked: list[pb.ShareRequest] = []
        self.told: list[pb.UseRequest] = []

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        link = SimpleNamespace(
            presence=SimpleNamespace(calls=SimpleNamespace(share=self._share)),
            rejoiner=SimpleNamespace(refused=self._join_again),
            _listener=SimpleNamespace(announce=lambda: False, arrived=lambda: True),
        )
        return JobLink.share(cast(JobLink, link), request)

    def _share(self, request: pb.ShareRequest) -> pb.ShareReply:
        if self.evicts:
            self.evicts = False
            raise Evicted("another has come", worker=0, incarnation=1)
        copy = pb.ShareRequest()
        copy.CopyFrom(request)
        self.asked.append(copy)
        return pb.ShareReply(piece=pb.Piece(place=0, ranks=1, count=1, own=True))

    def _join_again(self, _: Evicted) -> None:
        self.incarnation += 1

    def use(self, request: pb.UseRequest) -> None:
        self.told.append(request)


def dealer_of(source: Coordinator, steps: Any = None) -> EpochDealer:
    return EpochDealer(0, source, steps or Unmoved(), samples=40, whole=WHOLE, data={})


def test_who_is_evicted_while_it_asks_begins_without_a_pace_and_says_so_with_its_first_step():
    """The pace of the incarnation before would foretell samples that this one never handed out."""
    source = Coordinator()
    dealer = dealer_of(source)
    dealer.deal(0, begins=True)
    for step in (1, 2):
        dealer.hand_out(4)
        dealer.take_step(step)
    assert [(it.mark.step, it.mark.samples, it.mark.pace) for it in source.told] == [(1, 4, 4)]
    source.evicts = True
    dealer.deal(1, begins=True)
    assert [(it.mark.samples, it.mark.pace, it.rest.samples) for it in source.asked] == [(0, 0, 0)] * 2
    dealer.hand_out(4)
    dealer.take_step(3)
    assert [(it.mark.step, it.mark.samples, it.mark.pace) for it in source.told[1:]] == [(3, 4, 4)]


def test_where_a_position_of_another_size_is_taken_up_a_worker_goes_through_its_own_share():
    """In batches of its own size, and in none of these shares it is at a place of its own."""

    class Behind(Unmoved):
        def steps_behind(self) -> int:
            return 3

    found = []
    for ranks in (1, 2):
        dealer = dealer_of(Coordinator(), Behind())
        theirs = EpochPiece(epoch=5, place=0, ranks=ranks, count=4)
        dealer.take_up(Position(epoch=5, offset=12, batches=3, share=theirs))
        piece = dealer.replay(5)
        assert piece is not None
        assert not piece.own
        found.append((piece.epoch, piece.place, piece.ranks, piece.first))
    assert found == [(5, 2, 2, 0), (5, 0, 2, 12)]


def test_a_pass_that_is_void_is_dealt_without_a_word_to_the_coordinator():
    """It would take the worker to be in that epoch, and give its share of the one before to others."""

    class Rewound(Unmoved):
        def is_rewound(self) -> bool:
            return True

    source = Coordinator()
    dealer = dealer_of(source, Rewound())
    piece = dealer.deal(5, begins=True)
    assert piece is not None
    assert (piece.epoch, piece.place, piece.ranks, piece.first, piece.own) == (5, 2, 2, 0, False)
    assert not dealer.void
    dealer.hand_out(4)
    assert dealer.deal(5, begins=False) is None
    assert not dealer.under_way
    assert source.asked == source.told == []
