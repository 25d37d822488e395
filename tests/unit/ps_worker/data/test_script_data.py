"""Where a script is in its data, without a job: a coordinator that has nothing left, and a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ps_wire.errors import RolledBack
from ps_wire.spec.consistency import ASP
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.position import Position, Positions
from ps_worker.data.script_data import ScriptData


class Worker:
    """A `DataListener` and a `PieceSource`: it has nothing left in any epoch, and tells when it is asked."""

    step = 0
    next_call = 0
    incarnation = 1

    def __init__(self) -> None:
        self.asked: Callable[[], None] = lambda: None

    def steps_behind(self) -> int:
        return 0

    def is_rewound(self) -> bool:
        return False

    def begin_iterator(self) -> None: ...

    def end_iterator(self) -> None: ...

    def begin_batch(self) -> None: ...

    def begin_epoch(self, _epoch: int, **_loop: int) -> bool:
        return True

    def end_loop(self) -> None: ...

    def arrive_behind_loop(self) -> None: ...

    def pass_over_calls(self, number: int) -> None: ...

    def share(self, _request: pb.ShareRequest) -> pb.ShareReply:
        self.asked()
        return pb.ShareReply()

    def use(self, request: pb.UseRequest) -> None: ...


def test_a_later_loop_does_not_train_what_an_earlier_one_is_sent_back_to() -> None:
    """It is told once, and the loops that it runs then are all of them again."""
    data = ScriptData(ASP(), Worker())
    assert list(data.epochs(range(2))) == [0, 1]
    later = data.epochs(range(3))
    assert next(later) == 0
    data.rewind(Positions(epoch=1, loaders=()))
    with pytest.raises(RolledBack, match="epoch 1, and that is one of an earlier loop"):
        next(later)
    assert list(data.epochs(range(2))) == [1]
    assert list(data.epochs(range(3))) == [0, 1, 2]


def test_who_is_sent_to_the_epoch_whose_first_batch_it_asks_for_runs_its_body_once() -> None:
    """It was evicted in that call: it is in no batch, and yet not behind the last one of that epoch."""
    worker = Worker()
    data = ScriptData(ASP(), worker)
    loader = data.make_loader(
        worker,
        dataset=range(8),
        batch_size=2,
        shuffle=False,
        seed=0,
        drop_last=False,
        rank=0,
        num_workers=1,
        ended=False,
        options={},
    )
    bodies = []
    for epoch in data.epochs(range(3)):
        bodies.append(epoch)
        assert len(bodies) <= 3
        if epoch == 1:
            at = Positions(epoch=1, loaders=(Position(epoch=1, offset=2),))
            worker.asked = lambda at=at: data.take_up(at)
        assert list(loader) == []
        worker.asked = lambda: None
    assert bodies == [0, 1, 2]
