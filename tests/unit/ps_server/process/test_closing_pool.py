"""Threads that close steps, and replies that leave together."""

from __future__ import annotations

import threading

import pytest

from ps_server.process import closing_pool
from ps_server.process.closing_pool import BATCH, ClosingPool
from ps_server.shard.transport.outbox import MessageOutbox, corked
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from tests.until import LIMIT_S


def message(step: int = 0) -> Message:
    return Message(wire.Frame(kind=wire.Kind.ACK, step=step))


def test_every_job_is_done_also_after_one_that_fails(caplog):
    pool, done = ClosingPool(), []

    def fails() -> None:
        raise RuntimeError("on purpose")

    for index in range(3 * BATCH):
        pool.submit(fails if index % 5 == 0 else lambda index=index: done.append(index))
    pool.close()
    assert sorted(done) == [index for index in range(3 * BATCH) if index % 5]
    assert "on purpose" in caplog.text


def test_jobs_run_beside_each_other():
    """Two that wait for each other end, where there are two cores."""
    pool = ClosingPool()
    if len(pool._threads) < 2:
        pool.close()
        return
    barrier = threading.Barrier(2, timeout=LIMIT_S)
    for _ in range(2):
        pool.submit(barrier.wait)
    pool.close()
    assert not barrier.broken


def test_what_is_sent_corked_leaves_together_and_in_order():
    outbox, taken = MessageOutbox(), []
    sender = threading.Thread(target=lambda: taken.append(outbox.next()))
    sender.start()
    with corked():
        outbox.send(message(0))
        with corked():  # as a frame that is taken inside a batch
            outbox.send(message(1))
        outbox.send(message(2))
        assert not taken
    sender.join(LIMIT_S)
    assert [[sent.frame.step for sent in batch] for batch in taken] == [[0, 1, 2]]


def test_what_is_sent_without_a_cork_leaves_at_once():
    outbox = MessageOutbox()
    outbox.send(message(4))
    assert [sent.frame.step for sent in outbox.next()] == [4]


def test_a_closed_outbox_takes_nothing_and_lets_out_what_it_has():
    outbox = MessageOutbox()
    outbox.send(message(1))
    outbox.close()
    outbox.send(message(2))
    first = outbox.next()
    assert [sent.frame.step for sent in first] == [1]
    assert all(sent.held for sent in first)
    outbox.done(first)
    assert not any(sent.held for sent in first)
    assert outbox.next() == []


def test_there_are_as_many_threads_as_cores_can_be_used(monkeypatch: pytest.MonkeyPatch):
    """Not as many as the machine has: a container gets the time of a few."""
    monkeypatch.setattr(closing_pool, "available_cores", lambda: 3)
    pool = ClosingPool()
    pool.close()
    assert len(pool._threads) == 3
