"""A wait that is long says what for, and for whom."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import ServerUnreachable, TokenRefused
from ps_worker.exchange import in_flight
from ps_worker.membership import member_stream
from ps_worker.process import waiting
from ps_worker.process.waiting import AFTER_S, AGAIN_S, LongWaits, Wait, wait_of, waits
from ps_worker.transport.lost_shards import ANSWER_LIMIT_S, lost_shards
from tests.component.service import LIMIT_S, Cluster, fresh_name, together
from tests.inside import link_of, steps_of

SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)


def test_of_nested_waits_the_outermost_counts_and_it_ends_with_an_error_too():
    mine = threading.get_ident()

    @waits("one")
    def inner() -> str:
        found = wait_of(mine)
        assert found is not None
        return found.what

    @waits("other", inside_step=True)
    def outer() -> str:
        found = wait_of(mine)
        assert found is not None
        assert found.inside_step
        return f"{found.what}, {inner()}"

    @waits("third")
    def fails() -> None:
        raise ServerUnreachable("gone")

    assert inner() == "one"
    assert outer() == "other, other"
    with pytest.raises(ServerUnreachable):
        fails()
    assert wait_of(mine) is None


def test_a_mark_that_a_ctrl_c_left_behind_is_replaced_by_the_next_wait(monkeypatch):
    """It may come between the end of a wait and the taking away of its mark."""
    mine = threading.get_ident()

    def ended() -> int:
        return id(object())

    @waits("weights")
    def waited() -> str:
        found = wait_of(mine)
        assert found is not None
        return found.what

    monkeypatch.setitem(waiting._now, mine, Wait("what is over", inside_step=True, frame=ended()))
    assert waited() == "weights"
    assert wait_of(mine) is None
    monkeypatch.setitem(waiting._now, mine, Wait("what goes on", inside_step=True, frame=id(sys._getframe())))
    assert waited() == "what goes on"


class Clocked:
    """Long waits of a thread that is in a wait of the library, on a clock of ours."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 100.0
        self.counted = (3, 30)
        self.said: list[str] = []
        self.whom: list[str] | ps.PsError = ["waiting for worker 3, clock 41, lease 4.2 s left"]
        self.waits = LongWaits(lambda: self.counted, self._whom, self.said.append, lambda: self.now_s)
        self.wait: Wait | None = Wait("weights", inside_step=False, frame=id(sys._getframe()))
        monkeypatch.setattr(waiting, "wait_of", lambda _: self.wait)

    def _whom(self) -> list[str]:
        if isinstance(self.whom, ps.PsError):
            raise self.whom
        return self.whom

    def look(self, after_s: float) -> str:
        self.now_s += after_s
        self.waits.look()
        if self.waits._asking is not None:
            self.waits._asking.join(LIMIT_S)
        return self.waits.text


def test_only_a_long_wait_says_for_whom_and_not_more_often_than_a_person_reads(monkeypatch):
    clocked = Clocked(monkeypatch)
    text = "waiting for weights for 5 s; waiting for worker 3, clock 41, lease 4.2 s left"
    assert [clocked.look(after_s) for after_s in (0, AFTER_S - 0.1, 0.1)] == ["", "", text]
    assert clocked.look(AGAIN_S - 0.1) == text
    assert clocked.said == [text]
    assert clocked.look(0.2).startswith("waiting for weights for 15 s; ")
    assert len(clocked.said) == 2


def test_a_thread_that_gets_on_waits_for_nobody(monkeypatch):
    """It comes to the same place with each step."""
    clocked = Clocked(monkeypatch)
    clocked.look(0)
    for _ in range(20):
        clocked.counted = clocked.counted[0] + 1, 30
        assert clocked.look(AFTER_S) == ""
    assert clocked.look(AFTER_S) != ""
    clocked.wait = None
    assert clocked.look(1) == ""


def test_a_coordinator_that_does_not_say_for_whom_leaves_the_rest(monkeypatch):
    clocked = Clocked(monkeypatch)
    clocked.whom = ServerUnreachable("gone")
    clocked.look(0)
    assert clocked.look(AFTER_S) == "waiting for weights for 5 s"


def test_who_waits_at_a_gate_names_the_one_behind_in_its_log_and_in_its_status(
    one_shard: Cluster, monkeypatch
):
    """Its clock, and what is left of its lease."""
    monkeypatch.setattr(waiting, "AFTER_S", 0.2)
    job, seen, said = fresh_name(), threading.Event(), []

    def body(rank):
        def train():
            with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
                table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
                if rank == 1:
                    assert seen.wait(LIMIT_S)
                else:

                    def say(text: str) -> None:
                        said.append(text)
                        if "waiting for worker 1" in text:
                            seen.set()

                    steps_of(worker).waits._say = say
                table.push({"w": torch.ones(3)})
                table.pull().result()
                worker.finish()

        return train

    together([body(0), body(1)])
    assert any("waiting for worker 1, clock 0, lease " in text and text.endswith(" s left") for text in said)


def test_who_waits_while_a_shard_is_dead_names_the_shard_and_no_worker(durable: Cluster, monkeypatch):
    """Both wait for weights of the same step: neither of them holds the other one up.

    Before, one may: it is slow with its push, and nobody has seen yet that the shard is dead.
    """
    monkeypatch.setattr(waiting, "AFTER_S", 0.2)
    monkeypatch.setattr(waiting, "AGAIN_S", 0.2)
    monkeypatch.setattr(in_flight, "REPORT_WAIT_S", 0.2)
    monkeypatch.setattr(member_stream, "HEARTBEAT_S", 0.25)  # with each it is looked who waits
    job, stepped = fresh_name(), threading.Barrier(2, lambda: durable.kill(1))
    over = threading.Barrier(2, lambda: durable.start_again(1))  # then both leave, and the servers, at once

    def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):  # the first ones are ready before they hear that the shard has died
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()

    def body(rank: int) -> list[str]:
        said: list[str] = []
        worker = ps.connect(servers=durable.servers, job=job, num_workers=2, worker=rank)
        try:
            model = torch.nn.Linear(64, 64)
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, buckets=SMALL)

            def say(text: str) -> None:
                if text.startswith("waiting for weights") and "waiting for shard 1 at " in text:
                    said.append(text)
                if {text.startswith("waiting for weights of table") for text in said} == {True, False}:
                    link_of(worker).exchanges.fail(ps.UsageError("the test is over"))

            monkeypatch.setattr(steps_of(worker), "say", say)
            monkeypatch.setattr(steps_of(worker).waits, "_say", say)
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()
            stepped.wait(LIMIT_S)
            with pytest.raises(ps.UsageError, match="the test is over"):
                steps(model, optimizer)
            over.wait(LIMIT_S)
        finally:
            worker.leave("the test is over")
        return said

    for said in together([lambda: body(0), lambda: body(1)]):
        for text in said:
            assert "waiting for worker" not in text
            assert "behind it" not in text


class Shard:
    """A connection to one shard."""

    def __init__(self, name: str, *, lost: bool) -> None:
        self.shard_name = name
        self._lost = lost

    def is_lost(self, limit_s: float) -> bool:
        assert limit_s == ANSWER_LIMIT_S
        return self._lost


def test_of_all_shards_those_that_do_not_answer_are_named():
    shards = [Shard("shard 0 at a:1", lost=False), Shard("shard 1 at b:2", lost=True)]
    assert lost_shards(shards) == ["waiting for shard 1 at b:2, which does not answer"]
    assert lost_shards(shards[:1]) == []


@pytest.mark.parametrize(
    ("answer", "lost"), [(None, False), (ServerUnreachable("hangs"), True), (TokenRefused("no"), False)]
)
def test_a_shard_whose_process_does_not_answer_is_lost_though_its_connection_stays(
    one_shard: Cluster, monkeypatch, answer, lost
):
    """A refusal is an answer; and of a connection that is closed nothing is said."""

    def ask(limit_s: float) -> None:
        assert limit_s == ANSWER_LIMIT_S
        if answer is not None:
            raise answer

    with ps.connect(servers=one_shard.servers, job=fresh_name()) as worker:
        table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
        table.pull().result(LIMIT_S)
        (connection,) = link_of(worker).presence.connections
        monkeypatch.setattr(connection, "_ask", ask)
        assert connection.is_lost(ANSWER_LIMIT_S) == lost
    assert not connection.is_lost(ANSWER_LIMIT_S)
