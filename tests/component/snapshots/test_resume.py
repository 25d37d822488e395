"""Scripts go on where their job is: when all had gone, one was evicted or joins, and after a rollback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import ps_worker as ps
from ps_lab.snapshots import calls as snapshot_calls
from ps_server.coordinator import live_extras
from ps_server.coordinator.fleet.fleet import Fleet
from ps_wire.access.access import OPEN
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.job.rejoiner import Rejoiner
from ps_worker.membership import coordinator_calls
from ps_worker.membership.coordinator_calls import CoordinatorCalls
from ps_worker.membership.noting import Noting
from ps_worker.process import stopping
from tests.component.service import Cluster, fresh_name, status_of, together
from tests.inside import link_of
from tests.taking import Taking
from tests.until import LIMIT_S, until

EPOCHS, SAMPLES, BATCH = 5, 48, 4


class Killed(Exception):
    """The process of a worker is gone."""


@dataclass
class Run:
    """What a script did, over all its processes."""

    epochs: list[int] = field(default_factory=list)  # whose bodies began
    tails: list[int] = field(default_factory=list)  # and came to their end
    lr: float = 0.0
    per_epoch: int = 0
    per_step: int = 0
    steps: int = 0
    batches: int = 0  # that its last process's BatchNorm has seen, those included that its state came with
    weights: torch.Tensor | None = None


class Noisy(TensorDataset):
    """Each sample draws noise from torch's generator as it is read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        (x,) = super().__getitem__(index)
        return (x + 0.1 * torch.randn(6),)


def script(
    worker: ps.Worker,
    run: Run,
    at_step: Callable[[int], None] = lambda _step: None,
    at_tail: Callable[[int], None] = lambda _epoch: None,
) -> None:
    """A schedule per step, one per epoch, dropout; nothing in it is about faults."""
    torch.manual_seed(3)
    data = Noisy(torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1)))
    model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(3))
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1000)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    worker.register_state("warm", warm)
    worker.register_state("decay", decay)
    loader = worker.loader(data, batch_size=BATCH, seed=1)
    for epoch in worker.epochs(EPOCHS):
        run.epochs.append(epoch)
        for (x,) in loader:
            run.per_epoch, run.per_step = decay.last_epoch, warm.last_epoch
            at_step(worker.step)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            warm.step()
        decay.step()
        run.per_epoch, run.per_step = decay.last_epoch, warm.last_epoch
        at_tail(epoch)
        model.eval()
        worker.synchronize()
        with torch.no_grad():
            model(data.tensors[0])  # a forward that is no step
        model.train()
        run.tails.append(epoch)
    worker.finish()
    run.lr, run.steps = optimizer.param_groups[0]["lr"], worker.step
    run.per_epoch, run.per_step = decay.last_epoch, warm.last_epoch
    run.weights = torch.cat([it.detach().flatten() for it in model.parameters()])
    run.batches = int(model[2].num_batches_tracked)


def connect(cluster: Cluster, job: str, rank: int = 0, **settings: Any) -> ps.Worker:
    return ps.connect(servers=cluster.servers, job=job, worker=rank, **{"num_workers": 1} | settings)


@pytest.fixture(scope="module")
def undisturbed(one_shard: Cluster) -> Run:
    run = Run()
    with connect(one_shard, fresh_name()) as worker:
        script(worker, run)
    assert run.epochs == run.tails == list(range(EPOCHS))
    return run


def same(run: Run, other: Run) -> None:
    assert (run.steps, run.per_epoch, run.per_step, run.lr) == (
        other.steps,
        other.per_epoch,
        other.per_step,
        other.lr,
    )
    assert run.weights is not None
    assert torch.equal(run.weights, other.weights)


def used(cluster: Cluster, job: str) -> dict[int, int]:
    return {use.epoch: use.used for use in status_of(cluster).job(job).epochs}


@pytest.mark.parametrize("at", [0, 1, 12, 17, 23, 24, 59])
@pytest.mark.parametrize("evicted", [False, True], ids=["leaves", "dies"])
def test_who_comes_to_a_job_that_all_have_left_goes_on_where_it_is(one_shard, undisturbed, at, evicted):
    """Epoch, place, step, registered state, generators: to the bits of a run that nobody disturbed."""
    job, run = fresh_name(), Run()

    def ends(step: int) -> None:
        if step == at:
            raise Killed

    worker = connect(one_shard, job)
    with pytest.raises(Killed):
        script(worker, run, ends)
    if evicted:
        one_shard.evict(job, 0)
        link_of(worker).exchanges.fail(ps.UsageError("its process is gone"))
    worker.leave("it is gone")
    assert run.epochs == list(range(at // 12 + 1))
    with connect(one_shard, job) as again:
        script(again, run)
    assert run.epochs == [*range(at // 12 + 1), *range(at // 12, EPOCHS)]
    assert run.tails == list(range(EPOCHS))
    same(run, undisturbed)
    assert run.batches == run.steps
    assert set(used(one_shard, job).values()) == {SAMPLES}


@pytest.mark.parametrize("at", [0, 12, 17])
@pytest.mark.parametrize("again_at", [1, 2, 7, 14])
def test_who_is_killed_again_while_it_takes_steps_again_loses_nothing(one_shard, undisturbed, at, again_at):
    """Before its first step of its own, in it, and behind it: the third process ends as one undisturbed."""
    job, run, batches = fresh_name(), Run(), []

    def ends(step: int) -> None:
        if step == at:
            raise Killed

    def ends_again(_: int) -> None:
        batches.append(1)
        if len(batches) == again_at:
            raise Killed

    for kills in (ends, ends_again):
        worker = connect(one_shard, job)
        with pytest.raises(Killed):
            script(worker, run, kills)
        worker.leave("it is gone")
    with connect(one_shard, job) as last:
        script(last, run)
    assert run.tails == list(range(EPOCHS))
    same(run, undisturbed)
    assert set(used(one_shard, job).values()) == {SAMPLES}


@pytest.mark.parametrize("ends_at", [3, 26, 35])
def test_a_step_that_sigterm_ends_when_its_pushes_have_left_is_counted(
    one_shard, undisturbed, ends_at, monkeypatch
):
    """What follows in the script, its schedules, is done by the process that comes."""
    job, run, calls, step_ended = fresh_name(), Run(), [], stopping.step_ended

    def ends() -> None:
        calls.append(1)
        if len(calls) == ends_at:  # two for each step: the first is where pushes have left
            raise Killed
        step_ended()

    monkeypatch.setattr(stopping, "step_ended", ends)
    worker = connect(one_shard, job)
    with pytest.raises(Killed):
        script(worker, run)
    worker.leave("stopped by SIGTERM")
    with connect(one_shard, job) as again:
        script(again, run)
    assert run.tails == list(range(EPOCHS))
    same(run, undisturbed)


CALLS = ("begin_epoch", "at_epoch", "share", "at_step")
POINTS = ("a step", "behind an epoch", *(f"{when} {call}" for call in CALLS for when in ("before", "behind")))


@pytest.mark.parametrize("at", [0, 24, 30, 47])
@pytest.mark.parametrize("point", POINTS)
def test_who_is_alone_and_evicted_at_any_point_ends_as_one_undisturbed(
    one_shard, undisturbed, point, at, monkeypatch
):
    """As one that was paused: in calls where an epoch begins, in a first batch and in a last one."""
    job, run, evicted, connected = fresh_name(), Run(), [], []

    def happens(_: int) -> None:
        if connected and not evicted and connected[0].step >= at:
            evicted.append(True)
            one_shard.evict(job, 0)

    def happens_around(owner: type, name: str) -> None:
        call = getattr(owner, name)

        def around(*given: Any, **named: Any) -> Any:
            if point == f"before {name}":
                happens(0)
            found = call(*given, **named)
            if point == f"behind {name}":
                happens(0)
            return found

        monkeypatch.setattr(owner, name, around)

    happens_around(CoordinatorCalls, "begin_epoch")
    happens_around(CoordinatorCalls, "share")
    happens_around(Noting, "at_epoch")
    happens_around(Noting, "at_step")
    with connect(one_shard, job) as worker:
        connected.append(worker)
        script(
            worker,
            run,
            happens if point == "a step" else lambda _: None,
            happens if point == "behind an epoch" else lambda _: None,
        )
    assert evicted
    same(run, undisturbed)
    assert run.batches == run.steps
    assert set(used(one_shard, job).values()) == {SAMPLES}


def test_of_who_is_evicted_no_step_counts_whose_samples_nobody_knows(one_shard, undisturbed, monkeypatch):
    """The coordinator has decided, and shards have not heard of it: they would still take a push."""
    job, run, evicted, goes_on = fresh_name(), Run(), [], threading.Event()
    order, rejoin = Fleet.order, Rejoiner.rejoin

    async def late(fleet: Fleet, it: pb.Order, **named: Any) -> Any:
        if it.WhichOneof("kind") in ("fence", "evict"):
            await asyncio.to_thread(goes_on.wait, LIMIT_S)
        return await order(fleet, it, **named)

    def hears(rejoiner: Rejoiner) -> None:
        if rejoiner._presence.exchanges.failure is not None:
            goes_on.set()
        rejoin(rejoiner)

    def happens(step: int) -> None:
        if not evicted:
            evicted.append(True)
            one_shard.begin_eviction(job, 0)
        if step == 2:
            goes_on.set()

    monkeypatch.setattr(Fleet, "order", late)
    monkeypatch.setattr(Rejoiner, "rejoin", hears)
    with connect(one_shard, job) as worker:
        script(worker, run, happens)
        assert link_of(worker).incarnation == 2
    same(run, undisturbed)
    assert set(used(one_shard, job).values()) == {SAMPLES}


@pytest.fixture
def noted_always(monkeypatch):
    """As if each note were due: whatever comes, the last one is of the step that was begun last."""
    at_step = Noting.at_step

    def notes(noting: Noting) -> None:
        noting._due_s = 0.0
        at_step(noting)
        noting._idle.wait(LIMIT_S)

    monkeypatch.setattr(Noting, "at_step", notes)


@pytest.mark.usefixtures("noted_always")
@pytest.mark.parametrize("at", [0, 30, 47])
@pytest.mark.parametrize("evicted", [False, True], ids=["leaves", "is evicted"])
def test_a_note_has_the_generators_as_they_were_before_its_batch_was_read(
    one_shard, undisturbed, at, evicted
):
    """Whoever goes on there reads that batch again: its samples draw the noise that they have drawn."""
    job, run, done = fresh_name(), Run(), []

    def happens(step: int) -> None:
        if step == at and not done:
            done.append(True)
            if not evicted:
                raise Killed
            one_shard.evict(job, 0)

    with suppress(Killed), connect(one_shard, job) as worker:
        script(worker, run, happens)
    if not evicted:
        with connect(one_shard, job) as again:
            script(again, run)
    same(run, undisturbed)
    assert run.batches == run.steps


class Meeting:
    """One worker trains until another one has come, or has come again; by steps, not by time."""

    def __init__(self) -> None:
        self.trains, self.came = threading.Event(), threading.Event()

    def stays(self, worker: ps.Worker, step: int) -> None:
        """To be called by the one at each of its steps; two epochs and a half later it is far ahead."""
        if step == 30:
            self.trains.set()
            assert self.came.wait(LIMIT_S)
            wanted = link_of(worker).presence.membership
            until(lambda: wanted.position_wanted, "the other one asks where the job is")


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
@pytest.mark.parametrize("lowest", [False, True])
def test_who_joins_in_mid_run_begins_at_the_jobs_epoch_with_its_schedules(one_shard, consistency, lowest):
    """No body of a past epoch runs; under bsp schedules per step are at the job's step, worker 0's too."""
    job, meeting, runs = fresh_name(), Meeting(), [Run(), Run()]
    settings = {"num_workers": "1:2", "consistency": consistency}

    def first() -> None:
        with connect(one_shard, job, 1 if lowest else 0, **settings) as worker:
            script(worker, runs[0], lambda step: meeting.stays(worker, step))

    def second() -> None:
        assert meeting.trains.wait(LIMIT_S)
        worker = connect(one_shard, job, 0 if lowest else 1, **settings)
        meeting.came.set()
        with worker:
            script(worker, runs[1])

    together([first, second])
    check_joined(runs, consistency)
    assert 2 <= runs[1].epochs[0] <= 4
    assert set(used(one_shard, job).values()) == {SAMPLES}


def check_joined(runs: list[Run], consistency: str) -> None:
    for run in runs:
        assert run.tails == sorted(set(run.epochs))
        assert run.tails[-1] == EPOCHS - 1
        assert run.per_epoch == EPOCHS
        if consistency == "bsp":
            assert run.per_step == run.steps
    assert runs[0].epochs == list(range(EPOCHS))


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_who_was_evicted_for_long_goes_on_at_the_jobs_epoch_with_its_schedules(one_shard, consistency, rank):
    """As one that was paused for longer than its lease, while the other trained on for some epochs."""
    job, meeting, runs, evicted = fresh_name(), Meeting(), [Run(), Run()], threading.Event()
    settings = {"num_workers": 2, "consistency": consistency}

    def stays() -> None:
        with connect(one_shard, job, 1 - rank, **settings) as worker:

            def trains_on(step: int) -> None:
                if step == 4:
                    assert evicted.wait(LIMIT_S)  # else its own share may be all that it gets
                meeting.stays(worker, step)

            script(worker, runs[0], trains_on)

    def pauses(step: int) -> None:
        if step == 4 and not meeting.came.is_set():
            one_shard.evict(job, rank)
            evicted.set()
            assert meeting.trains.wait(LIMIT_S)
            meeting.came.set()

    def paused() -> None:
        with connect(one_shard, job, rank, **settings) as worker:
            script(worker, runs[1], pauses)

    together([stays, paused])
    check_joined(runs, consistency)
    assert runs[1].epochs[0] == 0
    assert runs[1].epochs[1] >= 1
    assert set(used(one_shard, job).values()) == {SAMPLES}


def test_who_was_evicted_behind_the_last_batch_of_the_epoch_of_the_others_runs_its_body_again(one_shard):
    """It has the schedules of one who is inside that epoch, so what follows in the body comes once more."""
    job, runs = fresh_name(), [Run(), Run()]
    inside, evicted = threading.Event(), threading.Event()
    settings = {"num_workers": 2, "consistency": "asp"}

    def stays() -> None:
        with connect(one_shard, job, 0, **settings) as worker:

            def waits(step: int) -> None:
                if step == 8:  # its next batch is in that epoch, too
                    inside.set()
                    assert evicted.wait(LIMIT_S)
                    until(
                        lambda: link_of(worker).presence.membership.position_wanted,
                        "the other one joins again",
                    )

            script(worker, runs[0], waits)

    def paused() -> None:
        with connect(one_shard, job, 1, **settings) as worker:

            def pauses(epoch: int) -> None:
                if epoch == 1 and not evicted.is_set():
                    assert inside.wait(LIMIT_S)
                    one_shard.evict(job, 1)
                    until(lambda: link_of(worker).presence.exchanges.failure is not None, "it has heard")
                    evicted.set()
                    link_of(worker).rejoiner.rejoin()  # as by a wait for weights that are still on their way

            script(worker, runs[1], at_tail=pauses)

    together([stays, paused])
    assert [run.per_epoch for run in runs] == [EPOCHS] * 2
    assert runs[1].epochs == [0, 1, 1, 2, 3, 4]
    assert set(used(one_shard, job).values()) == {SAMPLES}


def test_who_was_evicted_with_no_batch_left_keeps_what_it_does_behind_the_last_one(one_shard):
    """The other took what it left, and is in that epoch: its schedules are set before the body goes on."""
    job, runs = fresh_name(), [Run(), Run()]
    evicted, before_last, behind = threading.Event(), threading.Event(), threading.Event()
    found: list[tuple[int, int]] = []
    settings = {"num_workers": 2, "consistency": "asp"}

    def stays() -> None:
        with connect(one_shard, job, 0, **settings) as worker:
            membership = link_of(worker).presence.membership

            def is_behind() -> bool:
                found.append((runs[0].per_epoch, runs[0].per_step))
                return behind.wait(LIMIT_S)

            waits: dict[int, Callable[[], object]] = {
                11: lambda: evicted.wait(LIMIT_S),  # its own last: what the other leaves is dealt behind it
                14: lambda: before_last.set() or until(lambda: membership.position_wanted),
                15: is_behind,  # the last of 10 batches in that epoch, 4 of them the other's
            }
            script(worker, runs[0], lambda step: waits.pop(step, bool)())

    def paused() -> None:
        with connect(one_shard, job, 1, **settings) as worker:

            def pauses(step: int) -> None:
                if step == 8 and not before_last.is_set():  # it has 2 batches of that epoch in steps
                    one_shard.evict(job, 1)
                    evicted.set()
                    assert before_last.wait(LIMIT_S)

            def tail(epoch: int) -> None:
                if epoch == 1:
                    found.append((runs[1].per_epoch, runs[1].per_step))
                    behind.set()

            script(worker, runs[1], pauses, tail)

    together([stays, paused])
    assert sorted(found) == [(1, 15), (2, 15)]
    assert [run.per_epoch for run in runs] == [EPOCHS] * 2
    assert runs[1].epochs == [0, 1, 2, 3, 4]
    assert set(used(one_shard, job).values()) == {SAMPLES}


def test_who_comes_at_the_end_of_the_last_epoch_takes_all_of_its_steps_again(one_shard, monkeypatch):
    """It had more steps than a share has batches, nothing is left over, and no later epoch will come."""
    monkeypatch.setattr(live_extras, "JOINER_LIMIT_S", 0.0)  # the other takes no step: its note serves
    job, runs, found = fresh_name(), [Run(), Run()], []
    evicted, at_last, behind = threading.Event(), threading.Event(), threading.Event()
    last, steps = EPOCHS - 1, SAMPLES // BATCH // 2
    settings = {"num_workers": 2, "consistency": "bsp"}

    def stays() -> None:
        with connect(one_shard, job, 0, **settings) as worker:

            def waits(step: int) -> None:
                if step == last * steps + 2 * steps - 1:
                    at_last.set()
                    assert behind.wait(LIMIT_S)

            script(worker, runs[0], waits)

    def comes_again() -> None:
        with connect(one_shard, job, 1, **settings) as worker:

            def pauses(step: int) -> None:
                if step == last * steps and not evicted.is_set():
                    evicted.set()
                    one_shard.evict(job, 1)
                    assert at_last.wait(LIMIT_S)

            def tail(epoch: int) -> None:
                if epoch == last:
                    found.append((runs[1].per_step, worker.step))
                    behind.set()

            script(worker, runs[1], pauses, tail)

    together([stays, comes_again])
    (counted,) = found
    assert counted == (last * steps + 2 * steps - 1,) * 2
    assert runs[1].epochs == list(range(EPOCHS))
    assert set(used(one_shard, job).values()) == {SAMPLES}


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_who_was_evicted_has_the_schedules_where_it_was_sent_and_not_before(one_shard, consistency):
    """Its batches are its own, so it trains on to the end of its body: what ran there leaves nothing."""
    job, meeting, begun = fresh_name(), Meeting(), ([], [])

    def trains(rank: int, at_step: Callable[[ps.Worker, int], None]) -> None:
        with connect(one_shard, job, rank, num_workers=2, consistency=consistency) as worker:
            model = torch.nn.Linear(6, 3)
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
            decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            worker.register_state("decay", decay)
            for epoch in worker.epochs(EPOCHS):
                begun[rank].append((epoch, decay.last_epoch))
                for _ in range(12):
                    at_step(worker, worker.step)
                    model(torch.ones(BATCH, 6)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                decay.step()
            worker.finish()

    def pauses(_: ps.Worker, step: int) -> None:
        if step == 4 and not meeting.came.is_set():
            one_shard.evict(job, 1)
            assert meeting.trains.wait(LIMIT_S)
            meeting.came.set()

    together([lambda: trains(0, meeting.stays), lambda: trains(1, pauses)])
    assert begun[0] == [(epoch, epoch) for epoch in range(EPOCHS)]
    assert begun[1] == [(0, 0), *((epoch, epoch) for epoch in range(begun[1][1][0], EPOCHS))]
    assert begun[1][1][0] >= 2


@pytest.fixture
def num_durable() -> int:
    return 1


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("dies_after", [1, 10, 20])
def test_one_worker_that_goes_back_to_an_earlier_epoch_has_its_schedules_of_then(
    durable, undisturbed, dies_after, told
):
    """The script has no line about it; its loop goes back, and ends as a run that nobody disturbed."""
    job, run, taking = fresh_name(), Run(), []
    left, heard = [dies_after], []

    def dies(step: int) -> None:
        if step == 14 and not taking:  # it comes there again
            taking.append(Taking(durable.servers, job))
            taking[0].wait_fixed()
        if step >= 17 and left[0]:
            taking[0].wait()
            left[0] -= 1
            if not left[0]:
                durable.kill(0)
                durable.start_again(0)

    settings = {"on_rollback": heard.append} if told else {}
    with connect(durable, job, **settings) as worker:
        script(worker, run, dies)
        assert link_of(worker).incarnation > 1 << 32
    same(run, undisturbed)
    assert len(heard) == told
    assert set(used(durable, job).values()) == {SAMPLES}


@pytest.mark.parametrize("own", [False, True], ids=["a loader of ours", "batches of its own"])
def test_a_loop_whose_batches_are_its_own_hears_of_a_rollback(durable, own):
    """Else the rest of its body trains on, in an epoch that is undone; with a loader of ours it goes back."""
    job, taken, heard, deaths = fresh_name(), threading.Event(), [], [1]

    def take() -> None:
        list(snapshot_calls.take(durable.servers, job, OPEN))
        taken.set()

    taking = threading.Thread(target=take)

    def dies(step: int) -> None:
        if step == 3 and taking.ident is None:  # it comes there again
            taking.start()
        if step >= 3 and deaths and taken.wait(0.02 if step < 9 else 5.0):
            deaths.clear()
            durable.kill(0)
            durable.start_again(0)

    with connect(durable, job) as worker:
        model = torch.nn.Linear(6, 3)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        drawn = TensorDataset(torch.ones(SAMPLES, 6))
        batches = [[drawn.tensors[0]]] * 12 if own else worker.loader(drawn, batch_size=BATCH)
        for _ in worker.epochs(EPOCHS):
            for (x,) in batches:
                dies(worker.step)
                model(x).square().mean().backward()
                try:
                    optimizer.step()
                except ps.RolledBack as error:
                    heard.append(error.step)
                optimizer.zero_grad()
        worker.finish()
        assert link_of(worker).incarnation > 1 << 32
    assert len(heard) == own


def test_a_note_whose_writer_was_killed_on_the_way_leaves_the_one_before(one_shard, monkeypatch):
    """To a server such a stream ends as any other: half a note, or an empty one, is none."""
    with connect(one_shard, fresh_name(), 0) as worker:
        calls = link_of(worker).presence.membership.calls
        calls.put_state("note/0", b"whole")
        for came in (b"", b"an"):
            monkeypatch.setattr(coordinator_calls, "state_parts", lambda _, came=came: iter([came]))
            with pytest.raises(ps.PsError, match=f"came {len(came)} bytes, of 11"):
                calls.put_once("note/0", b"another one")
        assert calls.get_state("note/0") == b"whole"
