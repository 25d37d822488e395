"""Twenty seconds of chaos with a fixed seed, and what the judge of chaos is worth."""

from __future__ import annotations

import itertools
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import Start, Zygote, run
from tests.until import until

from . import apart, chaos, links
from .chaos_round import is_stopped
from .ledger import checksum
from .replay import Slice, check_order, replay
from .resume_plan import draw as draw_resumed
from .scenario import gradient, plan
from .schedule import CONSISTENCIES, Act, Event, Round, draw

STEPS = 150
SEED = 47  # under which, in a round of bsp, one server is killed and the other one stopped
WITH_A_SERVERS_END = 1
WITH_A_SILENCE = 43  # a seed under which the network of a worker of bsp falls silent in round 1
WITH_A_GROUP = 48  # a seed under which both ranks of a group are killed in a round of bsp
GROUP_STEPS = 80


@pytest.mark.integration
@pytest.mark.fault
def test_whatever_happens_every_push_is_accounted_for_and_the_weights_are_their_replay(
    zygote: Zygote,
) -> None:
    """Workers and a server are killed and stopped, and are apart; frames are lost.

    A round of bsp; `make chaos` has those of the other consistency models, and some of backup workers.
    """
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))  # it stays, where the round fails
    (happened,) = chaos.run(
        zygote.start,
        folder,
        seed=SEED,
        numbers=[WITH_A_SERVERS_END],
        until_s=math.inf,
        steps=STEPS,
        without=(chaos.RESUME,),  # `test_resume.py` has those
    )
    assert {*happened} == {*draw(SEED, WITH_A_SERVERS_END, steps=STEPS).events}
    assert acts_on("server", happened) & {Act.KILL, Act.STOP}
    assert acts_on("server", happened) & {Act.CUT, Act.BLINK}
    shutil.rmtree(folder)


@pytest.mark.integration
@pytest.mark.fault
def test_the_same_holds_where_networks_are_slow_and_cut(spawn: Start) -> None:
    """Workers in namespaces of their own, cut off for longer than a lease, and a server ends."""
    if reason := links.refusal():
        pytest.skip(reason)
    words = ["--seed", str(SEED), "--only", str(WITH_A_CUT), "--steps", str(STEPS), "--links"]
    words += ["--without", "silence", "--without", "loss"]  # the next test has those
    environment = {**apart.ENVIRONMENT, chaos.INSIDE: "1"}
    ended = spawn(*apart.command("tests.faults.chaos", *words), **environment)
    assert ended.wait_end(500.0) == 0, ended.text
    assert "1 rounds with networks of their own held" in ended.text


@pytest.mark.integration
@pytest.mark.fault
def test_the_same_holds_where_packets_of_a_worker_only_vanish(spawn: Start) -> None:
    """All of one worker's, until TCP has given up and it was evicted, and some of another one's."""
    if reason := links.refusal():
        pytest.skip(reason)
    others = [*{*Act} - {Act.SILENCE, Act.LOSS}, chaos.RESUME]
    words = ["--seed", str(WITH_A_SILENCE), "--only", "1", "--steps", "60", "--links"]
    words += itertools.chain.from_iterable(("--without", str(kind)) for kind in others)
    environment = {**apart.ENVIRONMENT, chaos.INSIDE: "1"}
    ended = spawn(*apart.command("tests.faults.chaos", *words), **environment)
    assert ended.wait_end(500.0) == 0, ended.text
    assert "faults: 1 loss worker, 1 silence worker" in ended.text


@pytest.mark.integration
@pytest.mark.fault
def test_the_same_holds_where_a_worker_is_a_group_whose_ranks_are_killed_and_stopped(zygote: Zygote) -> None:
    """Each rank by itself, in the middle of a step; the ledger has the mean of both, or neither's part."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    others = [act.value for act in Act if act not in (Act.KILL, Act.STOP, Act.PAUSE)]
    (happened,) = chaos.run(
        zygote.start,
        folder,
        seed=WITH_A_GROUP,
        numbers=[0],
        until_s=math.inf,
        steps=GROUP_STEPS,
        without=(chaos.RESUME, *others),
    )
    plan = draw(WITH_A_GROUP, 0, steps=GROUP_STEPS)
    assert plan.consistency == "bsp"
    for process in (f"worker {plan.group}", f"worker {plan.group}/1"):
        acts = {event.act for event in happened if event.process == process}
        assert acts >= {Act.KILL, Act.PAUSE}
    shutil.rmtree(folder)


def acts_on(side: str, events: Iterable[Event]) -> set[Act]:
    return {event.act for event in events if event.process.startswith(side)}


def links_round(number: int) -> Round:
    return draw(SEED, number, steps=STEPS, links=True)


WITH_A_CUT = next(
    number
    for number in range(1, 100, 2)  # in which a server ends, too
    if {Act.CUT, Act.BLINK} <= acts_on("worker", links_round(number).events)
)


@pytest.mark.integration
def test_a_process_that_was_killed_and_that_nobody_has_waited_for_is_no_longer_waited_for_to_stop() -> None:
    process = run(sys.executable, "-I", "-S", "-c", "import signal; print('up', flush=True); signal.pause()")
    process.wait_line("up")
    assert not is_stopped(process)
    process.signal(signal.SIGKILL)
    until(lambda: is_stopped(process), "it is gone")
    assert process.wait_end() == -signal.SIGKILL


def test_a_seed_gives_the_same_schedule_and_another_one_another() -> None:
    one, again, other = (draw(seed, 0, steps=STEPS) for seed in (5, 5, 6))
    assert one == again != other
    assert str(one) == str(again)


def test_rounds_go_through_every_consistency_and_every_act() -> None:
    rounds = [draw(SEED, number, steps=STEPS, links=True) for number in range(30)]
    assert {one.consistency for one in rounds} == set(CONSISTENCIES)
    events = [event for one in rounds for event in one.events]
    assert acts_on("worker", events) == set(Act) - {Act.HANG, Act.DOUBLE, Act.FULL}
    assert acts_on("server", events) == set(Act) - {Act.SLEEP, Act.LOSS}


def test_in_some_rounds_of_each_consistency_but_backup_a_worker_is_a_group() -> None:
    rounds = [draw(seed, number, steps=STEPS) for seed in (SEED, SEED + 1) for number in range(8)]
    of_groups = [one for one in rounds if one.group is not None]
    assert {one.consistency for one in of_groups} == {*CONSISTENCIES} - {"bsp:backup=1"}
    for one in of_groups:
        assert not one.ends_servers, "a group does not go back to a snapshot"
        rank = f"worker {one.group}/1"
        assert rank in one.processes
        assert {event.act for event in one.events if event.process == rank} & {Act.KILL, Act.STOP}
        assert f"worker {one.group} is a group" in str(one)


def test_a_round_that_fails_says_its_seed_its_schedule_and_where_its_logs_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_command: str, **_: Any) -> Any:
        raise RuntimeError("no processes today")

    with pytest.raises(RuntimeError, match="no processes today"):
        chaos.run(start, tmp_path, seed=77, numbers=[3], until_s=math.inf, steps=STEPS)
    said = capfd.readouterr().out
    assert "seed 77 failed in round 3" in said
    assert str(tmp_path / "round-3") in said
    assert str(draw(77, 3, steps=STEPS)) in said


def test_every_third_round_has_a_run_behind_it_that_is_resumed() -> None:
    assert [chaos.resumed_run(number) for number in range(7)] == [None, None, 0, None, None, 1, None]


def test_a_resumed_run_that_fails_says_how_it_is_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*_command: str, **_: Any) -> Any:
        raise RuntimeError("no processes today")

    with pytest.raises(RuntimeError, match="no processes today"):
        chaos.run_resumed(start, tmp_path, seed=77, number=5, expected={}, namespaces=False)
    said = capfd.readouterr().out
    assert "tests.faults.resume --seed 77 --only 5 --plain" in said
    assert str(draw_resumed(77, 5)) in said


# -- the judge of it ---------------------------------------------------------------------------------------

PLAN = plan(1)
HYPER = {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


RESTORED = [["restore", 0, 2, 2]]  # to version 2, in a cell of that name


def push(
    worker: int, step: int, *, partition: int = 0, incarnation: int = 1, of: int | None = None
) -> list[Any]:
    values = Slice(PLAN, PLAN.partition(partition)).of(gradient(worker, step if of is None else of))
    return [worker, incarnation, step, 1.0, checksum(values)]


def applied(version: int, *pushes: list[Any], cell: int = 1) -> list[Any]:
    return ["apply", 0, version, 1.0, list(pushes), HYPER, cell]


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([applied(1, push(0, 0)), applied(2, push(0, 0))], "applied twice"),
        ([applied(1, push(0, 0, of=1))], "not what was pushed"),
        ([applied(2, push(0, 0))], "a version is missing"),
    ],
)
def test_a_push_that_is_applied_twice_or_not_as_it_was_is_found(records: list[Any], what: str) -> None:
    """Without a barrier; the last one has left a version out."""
    with pytest.raises(AssertionError, match=what):
        replay(records, PLAN, aggregates=False)


def test_what_was_undone_is_applied_again_once() -> None:
    """A shard that was killed goes back, and what it had done since then is void."""
    before = [applied(1, push(0, 0)), applied(2, push(0, 1)), applied(3, push(0, 2))]
    again = [applied(3, push(0, 2, incarnation=2), cell=2)]
    late = [applied(4, push(0, 3))]  # of memory that was let go
    records = [*before, *RESTORED, *late, *again]
    assert replay(records, PLAN, aggregates=False).equal(replay(before, PLAN, aggregates=False))
    with pytest.raises(AssertionError, match="has never been"):
        replay([*before[:1], *RESTORED], PLAN, aggregates=False)


def test_what_is_handed_on_is_gone_on_with_and_was_all_there_is() -> None:
    """A server that was stopped leaves its memory to nobody, and what it held to the process after it."""
    before, after = [applied(1, push(0, 0))], [applied(2, push(0, 1), cell=2)]
    late = [applied(2, push(0, 2))]
    whole = replay([*before, applied(2, push(0, 1))], PLAN, aggregates=False)
    taken_up = [["take up", 0, 1, 2]]
    assert replay([*before, *taken_up, *late, *after], PLAN, aggregates=False).equal(whole)
    with pytest.raises(AssertionError, match="handed on at 1; it was at 2"):
        replay([*before, applied(2, push(0, 1)), *taken_up], PLAN, aggregates=False)


def test_partitions_that_go_back_to_different_steps_are_found() -> None:
    before = [[*applied(1, push(0, 0, partition=index))] for index in range(PLAN.num_partitions)]
    for index, record in enumerate(before):
        record[1] = index
    torn = [["restore", index, int(index == 0), 2] for index in range(PLAN.num_partitions)]
    with pytest.raises(AssertionError, match="a torn state"):
        replay([*before, *torn], PLAN, aggregates=True)


def test_another_order_gives_other_weights() -> None:
    """Else the replay would show nothing."""
    one = [applied(1, push(0, 0)), applied(2, push(1, 0))]
    other = [applied(1, push(1, 0)), applied(2, push(0, 0))]
    weights = [replay(records, PLAN, aggregates=False) for records in (one, one, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([["evict", 0, 2, 1, 7], ["take", 0, 2, 1, 5, 7]], "after its eviction"),
        ([["evict", 0, 2, 1, 7], ["restore", 0, 3, 8], ["take", 0, 2, 1, 5, 8]], "after its eviction"),
        ([["evict", 0, 2, 1, 7], ["take up", 0, 3, 8], ["take", 0, 2, 1, 5, 8]], "after its eviction"),
        ([["reply", 0, 3, 7, [[2, 3]]], applied(8, push(2, 2))], "a reply came before"),
    ],
)
def test_what_comes_too_late_is_found(records: list[Any], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check_order(records, aggregates=False)


@pytest.mark.parametrize(
    "records",
    [
        [["take", 0, 2, 1, 5, 7], ["evict", 0, 2, 1, 7], ["take", 0, 2, 2, 3, 7], ["take", 1, 2, 1, 5, 6]],
        [["evict", 0, 2, 1, 7], ["take", 0, 2, 1, 0, 8]],
        [["reply", 0, 3, 7, [[2, 3]]], applied(8, push(2, 3))],
        [applied(7, push(2, 2)), ["reply", 0, 3, 7, [[2, 3]]], applied(8, push(2, 1, incarnation=2))],
    ],
)
def test_what_comes_in_time_is_not(records: list[Any]) -> None:
    check_order(records, aggregates=False)


def test_an_event_says_what_happens_where() -> None:
    event = Event(process="worker 2", point="worker before ACK is taken", step=17, act=Act.KILL)
    assert str(event) == "kill worker 2 at step 17, worker before ACK is taken"
