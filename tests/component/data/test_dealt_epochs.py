"""Loaders of workers that come and go: an epoch is dealt to those who are there when it begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.spec.epochs import EpochPiece
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.data.epoch_dealer import EpochDealer, PieceSource
from ps_worker.job.job_link import JobLink
from ps_worker.job.resumption import Found
from tests.component.loaders import Stream, Unmoved
from tests.component.service import Cluster, fresh_name, status_of, together
from tests.inside import link_of
from tests.until import LIMIT_S, until

MANY_PASSES = 10_000  # more than fit into the time in which a worker comes again


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))


def samples(loader: ps.Loader) -> list[int]:
    return [sample for batch in loader for sample in batch.tolist()]


@pytest.mark.parametrize("dataset", [range(50), Stream(50)], ids=["map", "stream"])
def test_every_sample_comes_once_in_each_epoch_whoever_is_there(one_shard, dataset):
    """One leaves after the first epoch; another comes during the second, and has a part of the third."""
    job = fresh_name()
    first, gone, came, dealt = threading.Barrier(2), *(threading.Event() for _ in range(3))

    def join(rank):
        return ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank, consistency="asp")

    def stays():
        with join(0) as worker:
            table_of(worker)
            loader = worker.loader(dataset, batch_size=4)
            found = [samples(loader)]
            first.wait(LIMIT_S)
            assert gone.wait(LIMIT_S)
            found.append(samples(loader))
            dealt.set()
            assert came.wait(LIMIT_S)
            return [*found, samples(loader)]

    def leaves():
        with join(1) as worker:
            table_of(worker)
            found = samples(worker.loader(dataset, batch_size=4))
            first.wait(LIMIT_S)
        gone.set()
        return [found]

    def comes():
        assert dealt.wait(LIMIT_S)
        with join(1) as worker:
            table_of(worker)
            came.set()
            loader = worker.loader(dataset, batch_size=4)
            return [samples(loader) for _ in worker.epochs(3)]

    stayed, left, late = together([stays, leaves, comes])
    assert late[:2] == [[], []]
    for epoch, parts in enumerate(([stayed[0], left[0]], [stayed[1]], [stayed[2], late[2]])):
        start = 1000 * epoch if isinstance(dataset, Stream) else 0
        assert sorted(sample for part in parts for sample in part) == list(range(start, start + 50))
        assert all(parts)


def stepped(table: ps.Table) -> None:
    """One more step of a table, and its weights."""
    table.push({"w": torch.ones(3)}).result(LIMIT_S)
    table.pull().result(LIMIT_S)


def trained(worker: ps.Worker, table: ps.Table, loader: ps.Loader) -> list[int]:
    """The samples of an epoch whose steps were committed."""
    found: list[int] = []
    for batch in loader:
        before = table.step
        stepped(table)
        if table.step == before + 1:  # else the push was of an incarnation that was evicted
            found += batch.tolist()
    return found


def account(worker: ps.Worker) -> list[tuple[int, int, int, int]]:
    return [(use.epoch, use.samples, use.used, use.unused) for use in worker.stats().epochs if use.over]


@pytest.mark.parametrize("dataset", [range(50), Stream(50)], ids=["map", "stream"])
def test_what_one_leaves_in_the_middle_of_an_epoch_the_other_uses(one_shard, dataset):
    """The batch that it had, and made no step of, too."""
    job = fresh_name()
    gone = threading.Event()

    def join(rank):
        return ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank, consistency="asp")

    def stays():
        with join(0) as worker:
            table, loader = table_of(worker), worker.loader(dataset, batch_size=4)
            batches = iter(loader)
            first = next(batches).tolist()
            table.push({"w": torch.ones(3)}).result(LIMIT_S)
            assert gone.wait(LIMIT_S)
            found = first + trained(worker, table, batches)
            return found, account(worker)

    def leaves():
        with join(1) as worker:
            table, found = table_of(worker), []
            for number, batch in enumerate(worker.loader(dataset, batch_size=4)):
                if number == 3:
                    break
                table.push({"w": torch.ones(3)}).result(LIMIT_S)
                found += batch.tolist()
        gone.set()
        return found, []

    (stayed, accounts), (left, _) = together([stays, leaves])
    assert len(left) == 12
    assert sorted(stayed + left) == list(range(50))
    samples = 50 if isinstance(dataset, range) else 0
    assert accounts == [(0, samples, 50, 0)]


def one_leaves(one_shard, loader_of, steps: int):
    """Worker 1 leaves after so many steps, and the other trains on: what both used, and the account."""
    job = fresh_name()
    gone = threading.Event()

    def body(rank):
        def train():
            with ps.connect(
                servers=one_shard.servers, job=job, num_workers=2, worker=rank, consistency="asp"
            ) as worker:
                table, found = table_of(worker), []
                for number, batch in enumerate(loader_of(worker)):
                    if rank == 1 and number == steps:
                        break
                    table.push({"w": torch.ones(3)}).result(LIMIT_S)
                    found += batch.tolist()
                    assert rank or number or gone.wait(LIMIT_S)
                used = [] if rank else account(worker)
            if rank:
                gone.set()
            return found, used

        return train

    (stayed, accounts), (left, _) = together([body(0), body(1)])
    return stayed, left, accounts


@pytest.mark.parametrize("dataset", [range(50), Stream(50)], ids=["map", "stream"])
def test_one_with_other_batches_uses_what_another_one_left_from_the_sample_on(one_shard, dataset):
    """Under asp each worker has a batch size of its own: a rest is a place in samples, not in batches."""
    stayed, left, accounts = one_leaves(
        one_shard, lambda worker: worker.loader(dataset, batch_size=3 if worker.rank else 5), 3
    )
    assert len(left) == 9
    assert sorted(stayed + left) == list(range(50))
    assert accounts == [(0, 50 if isinstance(dataset, range) else 0, 50, 0)]


def test_what_a_worker_used_before_the_job_is_left_over_to_nobody(one_shard):
    """Its script loaded a state of its loader: two batches of its share were used."""

    def resumed(worker):
        loader = worker.loader(range(40), batch_size=4, shuffle=False)
        if worker.rank:
            loader.load_state_dict({**loader.state_dict(), "batches": 2})
        return loader

    stayed, left, accounts = one_leaves(one_shard, resumed, 1)
    assert left == [28, 29, 30, 31]
    assert sorted(stayed) == [*range(20), *range(32, 40)]
    assert accounts == [(0, 40, 40, 0)]


def test_a_worker_that_is_evicted_drops_its_share_and_every_sample_is_used_once(one_shard):
    """Under bsp; it goes on with what it had left over, if the other was not quicker."""
    job = fresh_name()

    def body(rank):
        def train():
            with ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank) as worker:
                table, loader = table_of(worker), worker.loader(range(60), batch_size=3)
                found: list[int] = []
                for number, batch in enumerate(loader):
                    if rank == 1 and number == 4:
                        one_shard.evict(job, 1)
                        until(lambda: link_of(worker).exchanges.failure is not None, "it has heard")
                    before = table.step
                    incarnation = link_of(worker).incarnation
                    table.push({"w": torch.ones(3)})
                    table.pull().result(LIMIT_S)
                    if link_of(worker).incarnation == incarnation and table.step == before + 1:
                        found += batch.tolist()
                worker.finish()
                return found

        return train

    first, second = together([body(0), body(1)])
    assert sorted(first + second) == list(range(60))
    (use,) = status_of(one_shard).job(job).epochs
    assert (use.epoch, use.samples, use.used, use.over) == (0, 60, 60, True)


class Passes:
    """State that a script changes behind the last batch of an epoch, as a schedule does."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Again:
    """A job of two workers, of which worker 1 is evicted in its first step.

    It joins again, and asks where the job is when worker 0 says so.

    Attributes:
        joined: it has.
        ask: worker 0 says so.
        found: it knows where the job is.
    """

    def __init__(self, cluster: Cluster, num_workers: int | str = 2) -> None:
        self.joined, self.ask, self.found = (threading.Event() for _ in range(3))
        self._cluster, self._job, self._num_workers = cluster, fresh_name(), num_workers

    def run(self, train: Callable[[ps.Worker, ps.Table, ps.Loader, Passes], None]) -> list[Any]:
        """Both run this; of each, how often it has passed by then, and its account of epochs."""

        def body(rank: int) -> Callable[[], Any]:
            def run() -> tuple[int, list[tuple[int, int, int, int]]]:
                with ps.connect(
                    servers=self._cluster.servers,
                    job=self._job,
                    num_workers=self._num_workers,
                    worker=rank,
                    consistency="asp",
                ) as worker:
                    table, passes = table_of(worker), Passes()
                    worker.register_state("passes", passes)
                    if rank == 1:
                        self._hold(worker)
                    train(worker, table, worker.loader(range(40), batch_size=4), passes)
                    worker.finish()
                    return passes.count, account(worker)

            return run

        return together([body(0), body(1)])

    def _hold(self, worker: ps.Worker) -> None:
        resumption = link_of(worker).resumption
        find = resumption.find

        def held() -> Found:
            self.joined.set()
            assert self.ask.wait(LIMIT_S)
            found = find()
            self.found.set()
            return found

        resumption.find = held  # type: ignore[method-assign]

    def epochs(
        self, count: int, worker: ps.Worker, table: ps.Table, loader: ps.Loader, passes: Passes
    ) -> None:
        """The loop of either."""
        for _ in worker.epochs(count):
            for _batch in loader:
                if worker.rank == 1 and not self.joined.is_set():
                    self._cluster.evict(self._job, 1)
                    until(lambda: link_of(worker).exchanges.failure is not None, "it has heard")
                stepped(table)
                assert worker.rank == 1 or self.joined.wait(LIMIT_S)
            passes.count += 1


@pytest.mark.parametrize("num_workers", [2, "1:2"])
def test_who_comes_again_behind_all_epochs_leaves_nothing_of_them_unused_and_has_the_state_of_there(
    one_shard, num_workers
):
    """They began when it had joined, and did not know yet where in the job it goes on.

    The rest of the body in which it was is undone.
    """
    again = Again(one_shard, num_workers)

    def train(worker: ps.Worker, table: ps.Table, loader: ps.Loader, passes: Passes) -> None:
        again.epochs(4, worker, table, loader, passes)
        again.ask.set()

    assert again.run(train) == [(4, [(epoch, 40, 40, 0) for epoch in range(4)])] * 2


def test_who_comes_again_among_steps_behind_a_loop_has_the_state_of_these(one_shard):
    """Not that of where the loop ended: what comes between is in it already."""
    again = Again(one_shard)

    def train(worker: ps.Worker, table: ps.Table, loader: ps.Loader, passes: Passes) -> None:
        again.epochs(2, worker, table, loader, passes)
        passes.count += 1
        for _ in range(MANY_PASSES):
            for _batch in loader:
                again.ask.set()
                stepped(table)
            if again.found.is_set():
                break

    assert [count for count, _ in again.run(train)] == [3, 3]


def test_only_what_the_pace_did_not_foretell_is_told_before_it_leaves(one_shard, monkeypatch):
    """Two batches a step: the first step says so. The last one comes when the epoch is at its end."""
    told: list[tuple[int, int]] = []
    use = JobLink.use

    def spy(link, request):
        told.append((request.mark.step, request.mark.samples))
        use(link, request)

    monkeypatch.setattr(JobLink, "use", spy)
    with ps.connect(servers=one_shard.servers, job=fresh_name(), num_workers=1) as worker:
        table, loader = table_of(worker), worker.loader(range(9), batch_size=1)
        validation = worker.loader(range(9), batch_size=1)
        for _ in worker.epochs(2):
            batches = iter(loader)
            while next(batches, None) is not None:
                next(batches, None)
                table.push({"w": torch.ones(3)}).result(LIMIT_S)
            list(validation)
        assert account(worker) == [(0, 9, 9, 0), (1, 9, 9, 0)]
    assert told == [(1, 2)]


@pytest.mark.parametrize("at", [0, 3], ids=["in its first step", "later"])
def test_when_all_workers_are_evicted_the_epoch_goes_on_with_who_comes_again(one_shard, at):
    """One that was alone and was paused: it drops the batch that it had, and gets it again with the rest."""
    job = fresh_name()
    with ps.connect(servers=one_shard.servers, job=job, num_workers=1, worker=0) as worker:
        table, loader, found = table_of(worker), worker.loader(range(40), batch_size=4), []
        for epoch in worker.epochs(2):
            found.append([])
            for number, batch in enumerate(loader):
                if epoch == 0 and number == at:
                    one_shard.evict(job, 0)
                    until(lambda: link_of(worker).exchanges.failure is not None, "it has heard")
                before = table.step
                stepped(table)
                found[-1] += batch.tolist() if table.step == before + 1 else []
        assert [sorted(samples) for samples in found] == [list(range(40))] * 2
        assert account(worker) == [(0, 40, 40, 0), (1, 40, 40, 0)]


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_who_goes_on_alone_with_a_job_that_all_have_left_uses_every_sample(one_shard, consistency):
    """Of the epoch that they left, and of those that it begins: the others may never come."""
    job = fresh_name()

    def join(rank):
        return ps.connect(
            servers=one_shard.servers, job=job, num_workers=2, worker=rank, consistency=consistency
        )

    def leaves(rank):
        with join(rank) as worker:
            table = table_of(worker)
            for _ in zip(range(2), worker.loader(range(40), batch_size=4), strict=False):
                table.push({"w": torch.ones(3)}).result(LIMIT_S)

    together([lambda: leaves(0), lambda: leaves(1)])
    with join(0) as worker:
        table, loader = table_of(worker), worker.loader(range(40), batch_size=4)
        for _ in worker.epochs(3):
            trained(worker, table, loader)
        assert account(worker) == [(epoch, 40, 40, 0) for epoch in range(3)]


class AskingTwice:
    """Sends every question again, as where its answer was lost."""

    def __init__(self, deals: JobLink) -> None:
        self.answers: list[list[pb.ShareReply]] = []
        self.use = deals.use
        self._deals = deals

    @property
    def incarnation(self) -> int:
        return self._deals.incarnation

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        self.answers.append([self._deals.share(request) for _ in range(2)])
        return self.answers[-1][1]


def dealer_of(source: PieceSource) -> EpochDealer:
    """Of a loader over eight samples, for a worker that has taken no step."""
    whole = EpochPiece(epoch=0, place=0, count=1)
    return EpochDealer(0, source, Unmoved(), samples=8, whole=whole, data={})


def test_a_question_for_samples_that_is_asked_again_gets_the_same_answer(one_shard):
    """What another worker has left over is not lost with the answer that brought it."""
    job = fresh_name()

    def join(rank):
        return ps.connect(servers=one_shard.servers, job=job, num_workers="2:2", worker=rank)

    with join(0) as worker:
        with join(1) as other:
            gone = dealer_of(link_of(other))
            gone.deal(0, begins=True)
            gone.hand_out(2)
            gone.take_step(1)
        asks = AskingTwice(link_of(worker))
        dealing = dealer_of(asks)
        pieces = [dealing.deal(0, begins=begins) for begins in (True, False, False)]
    assert all(first == second for first, second in asks.answers)
    assert [piece and piece.place for piece in pieces] == [0, 1, None]
