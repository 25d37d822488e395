"""Scripts with several loops over `worker.epochs`, one after the other, go on in that of their job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch.utils.data import TensorDataset

import ps_worker as ps
from ps_lab.jobs.calls import stop
from ps_lab.snapshots import calls as snapshot_calls
from ps_lab.status.observer import ask
from ps_wire.access.access import OPEN
from ps_worker.data.position import Position, Positions
from tests.component import undone as undoing
from tests.component.service import Cluster, fresh_name, together
from tests.component.undone import Bodies, Undone
from tests.inside import data_of
from tests.until import LIMIT_S

LOOPS = (2, 3)  # epochs of each; of 12 steps for one worker
SAMPLES, BATCH = 48, 4
BODIES = [(loop, epoch) for loop, epochs in enumerate(LOOPS) for epoch in range(epochs)]


class Killed(Exception):
    """The process of a worker is gone."""


@dataclass
class Run:
    """What a script did, over all its processes."""

    bodies: list[tuple[int, int]] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    per_epoch: int = 0
    per_step: int = 0
    steps: int = 0
    weights: torch.Tensor | None = None


def nothing(_step: int) -> None:
    """Happens."""


def script(
    worker: ps.Worker,
    run: Run,
    at_step: Callable[[int], None] = nothing,
    *,
    between: Callable[[], None] = lambda: None,
    calls: bool = False,
) -> None:
    """It trains the head, then all; where it is told that steps are undone, it runs its loops again."""
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1)))
    model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 2))
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1000)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    worker.register_state("warm", warm)
    worker.register_state("decay", decay)
    loader = worker.loader(data, batch_size=BATCH, seed=1)
    while True:
        try:
            for loop, epochs in enumerate(LOOPS):
                for epoch in worker.epochs(epochs):
                    run.bodies.append((loop, epoch))
                    for (x,) in loader:
                        at_step(worker.step)
                        model(x).square().mean().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        warm.step()
                    decay.step()
                    if calls:
                        worker.barrier()
                if calls:
                    run.sums.append(worker.all_reduce(10.0 * loop, "max"))
                    between()
                    run.sums.append(worker.all_reduce(10.0 * loop + 1, "max"))
            worker.finish()
            break
        except ps.RolledBack:
            continue
    run.steps, run.per_epoch, run.per_step = worker.step, decay.last_epoch, warm.last_epoch
    run.weights = torch.cat([it.detach().flatten() for it in model.parameters()])


def connect(cluster: Cluster, job: str, rank: int = 0, **settings: object) -> ps.Worker:
    return ps.connect(servers=cluster.servers, job=job, worker=rank, **{"num_workers": 1} | settings)


@pytest.fixture(scope="module")
def undisturbed(one_shard: Cluster) -> Run:
    job, run = fresh_name(), Run()
    with connect(one_shard, job) as worker:
        script(worker, run)
    assert run.bodies == BODIES
    assert used(one_shard, job) == dict.fromkeys(range(1, sum(LOOPS)), SAMPLES)  # the last four
    return run


def used(cluster: Cluster, job: str) -> dict[int, int]:
    return {use.epoch: use.used for use in ask(tuple(cluster.servers.split(","))).job(job).epochs}


def check_same(run: Run, other: Run) -> None:
    assert (run.steps, run.per_epoch, run.per_step) == (other.steps, other.per_epoch, other.per_step)
    assert run.weights is not None
    assert torch.equal(run.weights, other.weights)


@pytest.mark.parametrize("at", [5, 23, 24, 29, 47])
def test_who_comes_again_goes_on_in_the_loop_in_which_the_job_is(one_shard, undisturbed, at):
    job, run = fresh_name(), Run()

    def ends(step: int) -> None:
        if step == at:
            raise Killed

    worker = connect(one_shard, job)
    with pytest.raises(Killed):
        script(worker, run, ends)
    worker.leave("it is gone")
    before = at // 12
    assert run.bodies == BODIES[: before + 1]
    with connect(one_shard, job) as again:
        script(again, run)
    assert run.bodies == [*BODIES[: before + 1], *BODIES[before:]]
    check_same(run, undisturbed)
    assert set(used(one_shard, job).values()) == {SAMPLES}


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("loop", [0, 1])
def test_who_comes_while_the_others_are_behind_a_loop_goes_on_there_and_makes_their_calls(
    one_shard, consistency, loop
):
    """Between two loops, or behind the last one: no body of a loop before runs."""
    job, runs = fresh_name(), [Run(), Run()]
    settings = {"num_workers": "1:2", "consistency": consistency}
    waits, came, stood = threading.Event(), threading.Event(), []

    def stays() -> None:
        if not came.is_set() and len(runs[0].sums) == 2 * loop + 1:
            waits.set()
            assert came.wait(LIMIT_S)

    def first() -> None:
        with connect(one_shard, job, 0, **settings) as worker:
            script(worker, runs[0], between=stays, calls=True)

    def second() -> None:
        assert waits.wait(LIMIT_S)
        with connect(one_shard, job, 1, **settings) as worker:
            stood.append(worker.step)
            came.set()
            script(worker, runs[1], calls=True)

    together([first, second])
    assert runs[0].bodies == BODIES
    assert all(body[0] > loop for body in runs[1].bodies)
    assert runs[1].bodies == BODIES[len(BODIES) - len(runs[1].bodies) :]
    assert runs[0].sums == [0.0, 1.0, 10.0, 11.0]
    assert runs[1].sums[-2 * (2 - loop) :] == runs[0].sums[2 * loop :]
    assert runs[0].per_epoch == runs[1].per_epoch == len(BODIES)


@pytest.fixture
def num_durable() -> int:
    return 1


@pytest.mark.parametrize("taken_at", [14, 28])
def test_a_job_that_goes_back_is_gone_on_with_in_the_loop_of_the_snapshot(durable, undisturbed, taken_at):
    """From the second loop: by itself inside that one; into the first one by `RolledBack`."""
    job, run, taken = fresh_name(), Run(), threading.Event()
    left = [10]

    def take() -> None:
        list(snapshot_calls.take(durable.servers, job, OPEN))
        taken.set()

    taking = threading.Thread(target=take)

    def dies(step: int) -> None:
        if step == taken_at and taking.ident is None:  # it comes there again
            taking.start()
        if step >= max(taken_at, 24) and left[0] and taken.wait(0.02 if step < 30 else 1.0):
            left[0] -= 1
            if not left[0]:
                durable.kill(0)
                durable.start_again(0)

    with connect(durable, job) as worker:
        script(worker, run, dies)
    check_same(run, undisturbed)
    assert run.bodies[-1] == BODIES[-1]
    assert set(run.bodies) <= set(BODIES)
    assert set(used(durable, job).values()) == {SAMPLES}


def test_an_epoch_that_was_asked_for_and_not_begun_is_none_that_a_job_ends_after(durable, tmp_path):
    """The job goes back while its worker is between two epochs: it asks for the next, and goes elsewhere."""
    job = fresh_name()
    undone = Undone(durable, tmp_path, job)
    bodies = Bodies(undone)
    with connect(durable, job) as worker:
        loader = undone.wrap(worker)
        for epoch in worker.epochs(10):
            bodies.append(epoch)
            bodies.train(loader)
            if bodies == [0, 1]:
                undone.go_back()
            elif epoch == 1:
                assert worker.stop_job("enough") == 1
        assert bodies == [0, 1, 1]
        worker.finish()


@pytest.mark.parametrize("told", [False, True], ids=["as it stops", "in a step before"])
def test_a_decision_to_stop_that_is_undone_with_its_steps_stops_nothing(durable, tmp_path, told):
    """The job goes back in an epoch, or behind its last step; the script comes to its decision again."""
    job, lasts = fresh_name(), []
    undone = Undone(durable, tmp_path, job)
    bodies = Bodies(undone)
    with connect(durable, job) as worker:
        loader = undone.wrap(worker)
        for epoch in worker.epochs(10):
            bodies.append(epoch)
            bodies.train(loader, back_at=4 if told else None)
            if epoch == 2:
                if not told and not lasts:
                    undone.go_back()
                lasts.append(worker.stop_job("enough"))
        worker.finish()
    assert bodies == [0, 1, 2, 1, 2]
    assert lasts == [2, 2]
    assert used(durable, job)[2] == undoing.STEPS * BATCH


def test_where_no_loop_of_ours_goes_back_an_undone_decision_to_stop_stops_nothing(durable, tmp_path):
    """It gets `RolledBack` at its next step, and is not stopped there."""
    job = fresh_name()
    undone = Undone(durable, tmp_path, job)
    with connect(durable, job) as worker:
        undone.wrap(worker)
        x = torch.zeros(BATCH, 6)
        undone.step(x)
        undone.take()
        for _ in range(3):
            undone.step(x)
        undone.go_back()
        worker.stop_job("enough")
        with pytest.raises(ps.RolledBack):
            undone.step(x)
        assert list(worker.epochs(2)) == [0, 1]


def test_a_job_that_is_stopped_as_it_goes_back_ends_behind_the_epoch_of_its_snapshot(durable, tmp_path):
    """A person stops it before its worker has come to that epoch again."""
    job = fresh_name()
    undone = Undone(durable, tmp_path, job)
    bodies = Bodies(undone)
    with connect(durable, job) as worker:
        loader = undone.wrap(worker)
        for epoch in worker.epochs(10):
            bodies.append(epoch)
            bodies.train(loader)
            if bodies == [0, 1]:
                undone.go_back()
                assert "after epoch 1" in stop(durable.servers.split(",")[0], job, OPEN, reason="enough").why
        worker.finish()
    assert bodies == [0, 1, 1]
    assert used(durable, job)[1] == undoing.STEPS * BATCH


def test_a_job_that_is_stopped_in_the_first_loop_begins_no_other_one(one_shard):
    with connect(one_shard, fresh_name()) as worker:
        bodies = []
        for loop, epochs in enumerate(LOOPS):
            for epoch in worker.epochs(epochs):
                bodies.append((loop, epoch))
                worker.stop_job("enough")
        assert bodies == [(0, 0)]


def test_who_was_told_that_it_was_sent_back_and_does_not_go_there_is_not_let_finish(one_shard):
    """It runs the last of its loops again, and not the first: else the job would end without a word."""
    with connect(one_shard, fresh_name()) as worker:
        loader = worker.loader(range(40), batch_size=6)
        for loop in (worker.epochs(2), worker.epochs(3)):
            for _ in loop:
                list(loader)
        data = data_of(worker)
        data.rewind(Positions(epoch=3, loaders=(Position(epoch=3),), ends=(0,)))
        data.run_again()
        assert list(worker.epochs(3)) == []
        with pytest.raises(ps.UsageError, match=r"sent back to epoch 3.*all its loops"):
            worker.finish()
        assert list(worker.epochs(3)) == [0, 1, 2]
        worker.finish()


def test_a_loop_that_says_where_it_starts_counts_from_there(one_shard):
    """One after the other, as the second half of a run; what has been is not numbered again."""
    with connect(one_shard, fresh_name()) as worker:
        loader = worker.loader(range(40), batch_size=6)
        numbers = []
        for loop in (
            worker.epochs(2),
            worker.epochs(4, start=2),
            worker.epochs(2, start=2),
            worker.epochs(1),
        ):
            for epoch in loop:
                list(loader)
                numbers.append((epoch, loader.state_dict()["epoch"] - 1))
        assert numbers == [(0, 0), (1, 1), (2, 2), (3, 3), (0, 4)]
