"""The monitor of what is under way, alone: no connection, no plan and no tensor."""

from __future__ import annotations

import struct
import threading

import pytest

from ps_wire.errors import ConnectionLost, Evicted, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames import meta
from ps_worker.exchange import in_flight
from ps_worker.exchange.in_flight import Asked, InFlight, Missing
from tests.component.interrupting import interrupted_at
from tests.until import LIMIT_S, until

SHARD_OF = (0, 1, 0)


def made(*, skips: bool = False) -> tuple[InFlight, list[int]]:
    """One of three partitions on two shards, and the versions that it shows."""
    shown: list[int] = []
    return InFlight(SHARD_OF, show=shown.append, skips=skips), shown


def push(index: int, step: int = 0) -> wire.Frame:
    return wire.Frame(kind=wire.Kind.PUSH, partition=index, step=step)


def answer(index: int, step: int = 0, *, kind: wire.Kind = wire.Kind.ACK, flags: int = 0) -> wire.Frame:
    return wire.Frame(kind=kind, partition=index, step=step, flags=flags)


def come(it: InFlight, index: int, *, step: int, version: int, closed: bool = False) -> None:
    clocks = struct.pack("<IQ", 7, step)
    frame = wire.Frame(kind=wire.Kind.PULLED, partition=index, step=step, version=version, meta=clocks)
    it.came(frame, nbytes=10, closed=closed)


def all_come(it: InFlight, *, step: int, version: int) -> None:
    for index in range(len(SHARD_OF)):
        come(it, index, step=step, version=version)


def ask_ahead(it: InFlight, partitions: list[int], step: int) -> list[Asked | None]:
    asked = it.ask_ahead(partitions, step)
    it.note_ahead(asked)
    return asked


def test_what_is_noted_is_sent_again_to_its_shard_until_it_is_answered():
    it, _ = made()
    frames = [push(index) for index in range(3)]
    it.note(frames)
    assert it.unacked() == frames
    assert it.again(0) == ([frames[0], frames[2]], None)
    it.answered(answer(0))
    it.answered(answer(2, flags=wire.LENT))
    assert it.unacked() == [frames[1]]
    assert it.again(0)[0] == [frames[2]], "lent memory is still read"
    it.answered(answer(2, kind=wire.Kind.FREE))
    assert it.again(0) == ([], None)
    assert [it.pushed_step(index) for index in range(3)] == [0, 0, 0]


def test_the_ack_of_a_load_that_was_sent_twice_is_not_that_of_the_first_push():
    """A connection that breaks between its being noted and its being sent has a new one send it, too.

    An older shard does not say of what its ACK is; a LOAD is acknowledged by that.
    """
    it, _ = made()
    it.note([push(0).but(kind=wire.Kind.LOAD)])
    it.answered(answer(0, flags=wire.LOADED))
    it.note([push(0)])
    it.answered(answer(0, flags=wire.LOADED))
    assert it.unacked() == [push(0)]
    it.answered(answer(0))
    it.note([push(0).but(kind=wire.Kind.LOAD)])
    it.answered(answer(0))
    assert it.unacked() == []


def test_what_is_asked_is_told_by_shard_with_first_layers_first():
    it, _ = made()
    asked = it.ask(4, wire.READ)
    assert asked == [
        Asked(step=4, flags=wire.READ, nothing=False, partitions=(2, 0)),
        Asked(step=4, flags=wire.READ, nothing=False, partitions=(1,)),
    ]
    come(it, 1, step=4, version=4)
    assert it.again(1) == ([], None)
    come(it, 2, step=4, version=4)
    assert it.again(0) == ([], Asked(step=4, flags=wire.READ, nothing=False, partitions=(0,)))


def test_what_is_asked_ahead_is_not_asked_again_and_nothing_is_shown_before_the_rest_was_asked():
    it, shown = made()
    first, second = (Asked(step=4, flags=0, nothing=False, ahead=True, partitions=(at,)) for at in (1, 2))
    assert ask_ahead(it, [1], 4) == [None, first]
    assert ask_ahead(it, [1, 2], 4) == [second, None]
    assert it.again(0)[1] == Asked(step=4, flags=0, nothing=False, ahead=True, partitions=(2,))
    come(it, 1, step=4, version=4)
    assert it.versions == [0, 4, 0]
    assert (shown, it.all_pulled, it.spread) == ([], False, 0)
    assert it.ask(4) == [Asked(step=4, flags=0, nothing=False, partitions=(0,)), None]
    come(it, 2, step=4, version=4)
    come(it, 0, step=4, version=4)
    assert (shown, it.all_pulled) == ([4], True)


def test_the_last_ones_of_a_step_are_not_asked_ahead():
    it, _ = made()
    ask_ahead(it, [2, 1], 4)
    assert ask_ahead(it, [0], 4) == [None, None]
    assert ask_ahead(it, [0, 1, 2], 4) == [None, None]
    assert it.ask(4) == [Asked(step=4, flags=0, nothing=False, partitions=(0,)), None]


def test_nothing_is_asked_ahead_while_weights_of_before_are_missing():
    it, _ = made()
    it.ask(3)
    assert ask_ahead(it, [1], 4) == [None, None]
    all_come(it, step=3, version=3)
    assert ask_ahead(it, [1], 4)[1] is not None


def test_what_was_about_to_be_asked_ahead_is_asked_with_the_rest():
    """Ctrl-C may come in between."""
    it, _ = made()
    assert it.ask_ahead([1], 4)[1] is not None
    assert [one and one.partitions for one in it.ask(4)] == [(2, 0), (1,)]


def test_a_connection_that_comes_while_weights_are_asked_for_ahead_asks_for_them():
    """What was given to one that is down is lost: a new one asks for what counts as asked."""
    it, _ = made()
    (_, asked) = it.ask_ahead([1], 4)
    assert it.again(1) == ([], asked)
    it.note_ahead([asked])
    assert it.again(1) == ([], asked)
    assert [one and one.partitions for one in it.ask(4)] == [(2, 0), None]


def test_what_came_before_it_was_known_to_have_been_asked_for_is_not_asked_for_again():
    it, _ = made()
    it.ask_ahead([1], 4)
    come(it, 1, step=4, version=4)
    assert [one and one.partitions for one in it.ask(4)] == [(2, 0), None]


@pytest.mark.parametrize(
    "asked", [{"step": 5}, {"step": 4, "flags": wire.READ}, {"step": 4, "nothing": True}]
)
def test_who_asks_for_something_else_asks_for_all_of_it(asked: dict[str, int]):
    it, _ = made()
    ask_ahead(it, [1], 4)
    by_shard = it.ask(**asked)
    assert [one and one.partitions for one in by_shard] == [(2, 0), (1,)]


def test_who_has_joined_again_asks_for_all():
    it, _ = made()
    ask_ahead(it, [1], 4)
    it.forget()
    assert [one and one.partitions for one in it.ask(4)] == [(2, 0), (1,)]


def test_weights_are_shown_once_all_are_here_before_anybody_is_told():
    it, shown = made()
    it.ask(1)
    told: list[list[int]] = []
    it.when_pulled(lambda _: None, lambda: told.append(list(shown)))
    for index in range(3):
        assert not shown
        assert not it.all_pulled
        come(it, index, step=1, version=5)
    assert told == [[5]]
    assert (it.versions, it.clocks, it.bytes_pulled, it.opened) == ([5, 5, 5], {7: 1}, 30, 1)


def test_weights_that_hold_a_push_are_its_answer_too():
    it, _ = made()
    it.note([push(1)])
    it.ask(1)
    come(it, 1, step=1, version=1, closed=True)
    assert it.unacked() == []
    assert it.all_free


def test_what_was_asked_before_is_ignored():
    it, shown = made()
    it.ask(1)
    it.ask(2)
    all_come(it, step=1, version=1)
    assert it.versions == [0, 0, 0]
    assert not shown


def test_who_reads_keeps_the_weights_until_it_has_read():
    """The next question waits for it, on another thread; that of the gate does not."""
    it, _ = made()
    it.ask(0)
    reading, go_on = threading.Event(), threading.Event()

    def read() -> None:
        reading.set()
        assert go_on.wait(LIMIT_S)

    it.when_pulled(lambda _: None, read)
    arriving = threading.Thread(target=all_come, args=(it,), kwargs={"step": 0, "version": 0})
    arriving.start()
    assert reading.wait(LIMIT_S)
    assert it.ask(1, nothing=True)
    asked = threading.Event()
    asking = threading.Thread(target=lambda: (it.ask(2), asked.set()))
    asking.start()
    assert not asked.is_set()
    go_on.set()
    arriving.join(LIMIT_S)
    asking.join(LIMIT_S)
    assert asked.is_set()


def test_wherever_ctrl_c_lands_in_a_call_that_reads_the_next_ones_are_asked_for():
    """Weights that nobody waits for are read at once; who is interrupted there reads no more."""
    line, interrupted = 0, True
    while interrupted:
        it, _ = made()
        told: list[PsError | None] = []
        interrupted = interrupted_at(line, lambda it=it, told=told: it.when_pulled(told.append, lambda: None))
        assert it.ask(1)
        line += 1
    assert told == [None]
    assert line > 5


def test_only_the_gate_is_asked_where_nothing_else_is():
    it, shown = made()
    it.ask(3, nothing=True)
    for index in range(3):
        it.came_open(answer(index, 3, kind=wire.Kind.PULLED))
    assert it.opened == 3
    assert it.all_pulled
    assert not shown


def test_with_backup_workers_weights_may_be_of_a_later_step():
    it, _ = made(skips=True)
    it.ask(2)
    all_come(it, step=2, version=5)
    assert it.step_of(2) == 5
    assert it.missed == 3
    plain, _ = made()
    plain.ask(2)
    all_come(plain, step=2, version=5)
    assert (plain.step_of(2), plain.missed) == (2, 0)


def test_a_wait_for_some_partitions_ends_when_these_are_here():
    it, _ = made()
    it.ask(0)
    come(it, 1, step=0, version=0)
    it.wait_pulled(wanted=frozenset({1}))
    assert not it.all_pulled_within(0.0)


def test_a_long_wait_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(in_flight, "REPORT_WAIT_S", 0.01)
    it, _ = made()
    it.ask(6)
    come(it, 1, step=6, version=6)
    said: list[Missing] = []

    def report(missing: Missing) -> None:
        said.append(missing)
        come(it, 0, step=6, version=6)
        come(it, 2, step=6, version=6)

    it.wait_pulled(report)
    assert said == [Missing(step=6, shards=(0,), clocks={7: 6})]


def test_the_first_failure_ends_every_wait_and_every_callback_once():
    it, _ = made()
    it.note([push(0)])
    it.ask(1)
    told: list[PsError | None] = []
    it.when_acked(told.append)
    it.when_pulled(told.append)
    raised: list[PsError] = []

    def wait() -> None:
        try:
            it.wait_free([0])
        except PsError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    first = ConnectionLost("gone")
    it.fail(first)
    it.fail(ConnectionLost("gone again"))
    waiting.join(LIMIT_S)
    assert raised == [first]
    assert told == [first, first]
    with pytest.raises(ConnectionLost) as caught:
        it.note([push(1)])
    assert caught.value is first
    assert not it.expected(answer(0, 1, kind=wire.Kind.PULLED))


def test_who_has_joined_again_has_nothing_under_way():
    it, _ = made()
    it.note([push(0)])
    it.ask(1)
    it.fail(Evicted("held up"))
    assert it.evicted
    it.forget()
    assert not it.evicted
    assert it.wait_acked(limit_s=0.0)
    assert it.all_pulled
    assert it.again(0) == ([], None)
    assert it.opened == -1


def test_answers_and_waits_of_two_threads_meet():
    it, _ = made()
    for step in range(50):
        it.note([push(index, step) for index in range(3)])
        answering = threading.Thread(target=lambda at=step: [it.answered(answer(i, at)) for i in range(3)])
        answering.start()
        assert it.wait_acked(limit_s=LIMIT_S)
        answering.join(LIMIT_S)
    until(lambda: it.all_free, "all is answered")


def test_a_list_answers_each_of_its_partitions_and_no_other():
    """As as many frames would; one that was answered before is passed over."""
    it, shown = made()
    it.note([push(index) for index in range(3)])
    acks = answer(0).but(flags=wire.LISTED, meta=meta.listed([2, 0]))
    it.answered(acks)
    assert it.unacked() == [push(1)]
    it.answered(acks)
    assert it.unacked() == [push(1)]
    it.ask(1)
    come(it, 2, step=1, version=1)
    clocks = meta.clocks([(7, 1)])
    pulled = wire.Frame(kind=wire.Kind.PULLED, step=1, version=1)
    came = pulled.but(flags=wire.LISTED, hyper=2, meta=meta.listed([2, 1]) + clocks)
    assert it.expected(came) == [1]
    it.came(came, nbytes=10, closed=True)
    assert it.unacked() == []
    assert not it.all_pulled
    it.came(came, nbytes=10, closed=True)
    assert (it.clocks, it.bytes_pulled, it.versions) == ({7: 1}, 20, [0, 1, 1])
    come(it, 0, step=1, version=1)
    assert shown == [1]
