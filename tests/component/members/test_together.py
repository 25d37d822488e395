"""`all_reduce`, `broadcast` and `barrier`: the same on all workers, in every consistency model."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch.utils.data import TensorDataset

import ps_worker as ps
from ps_wire.errors import CallLimitExceeded, JobMismatch, JobUnknown, UsageError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.membership.together import Together
from tests.component.service import figures, fresh_name, partitions, run_workers, together
from tests.until import LIMIT_S

DATA = TensorDataset(torch.arange(96.0).reshape(48, 2))


def wrapped(worker: ps.Worker) -> tuple[torch.nn.Module, ps.WrappedOptimizer]:
    model = torch.nn.Linear(2, 1)
    return model, worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), model)


def train(model: torch.nn.Module, optimizer: ps.WrappedOptimizer, x: torch.Tensor) -> None:
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("consistency", ["bsp", "ssp:3", "asp"])
def test_all_workers_get_the_same_bits_in_every_consistency_model(one_shard, consistency):
    def body(worker: ps.Worker) -> list[object]:
        run = worker.broadcast({"seed": 7 + worker.rank, "names": ["a", None]}, src=1)
        model, optimizer = wrapped(worker)
        loader = worker.loader(DATA, batch_size=4)
        got: list[object] = [run]
        for _ in worker.epochs(3):
            for (x,) in loader:
                train(model, optimizer, x)
            loss = torch.tensor([0.1, 1e-9], dtype=torch.float64) * (worker.rank + 1)
            given = {"loss": loss, "right": worker.rank + 1}
            if worker.rank:
                given = dict(reversed(given.items()))
            reduced = worker.all_reduce(given, op="sum")
            assert list(reduced) == list(given)
            got.append((reduced["loss"].tolist(), reduced["right"]))
            got.append([worker.all_reduce(worker.rank, op=op) for op in ("mean", "sum", "min", "max")])
        worker.barrier()
        worker.finish()
        return got

    first, second, third = run_workers(one_shard, body, num_workers=3, consistency=consistency)
    assert first == second == third
    assert first[0] == {"seed": 8, "names": ["a", None]}
    assert first[1][1] == 6.0
    assert first[2] == [1.0, 3.0, 0.0, 2.0]


def test_alone_a_call_gives_what_it_was_given(monkeypatch):
    monkeypatch.delenv("PS_SERVERS", raising=False)
    with ps.connect() as worker:
        assert worker.all_reduce({"loss": 2, "accuracy": torch.tensor([0.5])}) == {
            "loss": 2.0,
            "accuracy": torch.tensor([0.5]),
        }
        assert worker.broadcast((1, 2)) == [1, 2]
        worker.barrier()


def test_shapes_and_dtypes_come_back(one_shard):
    def body(worker: ps.Worker) -> None:
        given = torch.full((2, 3), float(worker.rank), dtype=torch.float16, requires_grad=True)
        made = worker.all_reduce(given)
        assert (made.shape, made.dtype, made.requires_grad) == ((2, 3), torch.float16, False)
        assert made[0, 0] == 0.5
        assert worker.all_reduce(torch.tensor(3), op="sum").dtype == torch.float64
        assert math.isnan(worker.all_reduce(math.nan if worker.rank else 1.0, op="max"))

    run_workers(one_shard, body, num_workers=2)


def test_different_calls_are_refused_by_name_on_all_workers(one_shard):
    def body(worker: ps.Worker) -> None:
        with pytest.raises(JobMismatch, match=r"call 0 of workers together: worker 0 makes .*'loss'.*'los'"):
            worker.all_reduce({"los" if worker.rank else "loss": 1.0})
        assert worker.all_reduce(1.0, op="sum") == 2.0

    run_workers(one_shard, body, num_workers=2)


def test_one_who_finishes_or_leaves_is_not_waited_for(one_shard):
    def body(worker: ps.Worker) -> float | None:
        model, optimizer = wrapped(worker)
        train(model, optimizer, DATA.tensors[0])
        if worker.rank == 2:
            return None  # it leaves
        if worker.rank == 1:
            worker.finish()
            with pytest.raises(UsageError, match="has finished"):
                worker.barrier()
            return None
        total = worker.all_reduce(1.0, op="sum")
        with pytest.raises(JobUnknown, match="worker 2 is not there"):
            worker.broadcast(1, src=2)
        worker.finish()
        return total

    assert run_workers(one_shard, body, num_workers=3)[0] == 1.0


def test_an_evicted_worker_is_taken_out_and_gets_what_the_others_got(one_shard):
    job, waits, gone, back = fresh_name(), threading.Event(), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> list[float]:
        model, optimizer = wrapped(worker)
        train(model, optimizer, DATA.tensors[0])
        if worker.rank == 1:
            assert waits.wait(LIMIT_S)
            one_shard.evict(job, 1)
            assert gone.wait(LIMIT_S)
        else:
            waits.set()
        got = [worker.all_reduce(float(worker.rank + 1), op="sum")]
        gone.set()
        got.append(worker.all_reduce(float(worker.rank + 1), op="sum"))
        if worker.rank == 1:
            back.set()
        while not back.is_set():  # one that trains says where it is to one that joins
            train(model, optimizer, DATA.tensors[0])
        worker.finish()
        return got

    first, second = run_workers(one_shard, body, num_workers=2, job=job)
    assert first[0] == second[0] == 1.0
    assert first[1] in (1.0, 3.0)  # whether it was back by then
    assert second[1] == first[1]


def test_who_was_evicted_and_comes_back_when_the_job_has_ended_has_its_own_value(one_shard):
    """There are no others any more, and nothing to decide."""
    job, waits, over = fresh_name(), threading.Event(), threading.Event()

    def body(worker: ps.Worker) -> float:
        model, optimizer = wrapped(worker)
        train(model, optimizer, DATA.tensors[0])
        if worker.rank == 1:
            assert waits.wait(LIMIT_S)
            one_shard.evict(job, 1)
            assert over.wait(LIMIT_S)
        else:
            waits.set()
        got = worker.all_reduce(float(worker.rank + 1), op="sum")
        worker.finish()
        over.set()
        return got

    assert run_workers(one_shard, body, num_workers=2, job=job) == [1.0, 2.0]


def test_who_joins_in_mid_run_makes_the_calls_of_the_job(one_shard):
    """Those before its loop it gets as they were; no call waits for it before it takes part."""
    job, came, joined = fresh_name(), threading.Event(), threading.Event()

    def connect(rank: int) -> ps.Worker:
        return ps.connect(
            servers=one_shard.servers, job=job, consistency="asp", num_workers="1:2", worker=rank
        )

    def run(rank: int) -> tuple[object, dict[int, float]]:
        with connect(rank) as worker:
            if rank:
                joined.set()
            seed = worker.broadcast(41 + rank)
            model, optimizer = wrapped(worker)
            loader = worker.loader(DATA, batch_size=4)
            worker.barrier()
            sums = {}
            for epoch in worker.epochs(6):
                for number, (x,) in enumerate(loader):
                    if (epoch, number, rank) == (2, 2, 0):
                        came.set()
                        assert joined.wait(LIMIT_S)
                    train(model, optimizer, x)
                sums[epoch] = worker.all_reduce(float(epoch))
            worker.finish()
            return seed, sums

    def late() -> tuple[object, dict[int, float]]:
        assert came.wait(LIMIT_S)
        return run(1)

    (seed, sums), (other, others) = together([lambda: run(0), late])
    assert seed == other == 41
    assert sums == {epoch: float(epoch) for epoch in range(6)}
    assert others == {epoch: value for epoch, value in sums.items() if epoch in others}


def test_who_waits_in_vain_is_told_for_whom(one_shard):
    job, tried = fresh_name(), threading.Event()

    def body(worker: ps.Worker) -> None:
        if worker.rank:
            assert tried.wait(LIMIT_S)
            return
        try:
            with pytest.raises(CallLimitExceeded, match=r"barrier\(\) .* within 0.01 s; missing: worker 1"):
                worker.barrier(limit_s=0.01)
        finally:
            tried.set()

    run_workers(one_shard, body, num_workers=2, job=job)


def test_what_cannot_be_reduced_or_sent_is_refused(one_shard):
    def body(worker: ps.Worker) -> None:
        for wrong, says in (
            (lambda: worker.all_reduce({"loss": "much"}), r"all_reduce\(loss=...\) takes a number"),
            (lambda: worker.all_reduce(1.0, op="prod"), "op must be one of mean, sum, min, max"),
            (lambda: worker.all_reduce(torch.zeros(5000)), "4096 numbers at most, got 5000"),
            (lambda: worker.all_reduce({"x" * 5000: 1.0}), "4096 characters"),
            (lambda: worker.all_reduce(torch.zeros(1, dtype=torch.complex64)), "complex"),
            (lambda: worker.all_reduce({3: 1.0}), "names are texts"),
            (lambda: worker.broadcast(object()), "takes what JSON has"),
            (lambda: worker.broadcast("x" * 40000), "32768 bytes"),
            (lambda: worker.broadcast(1, src=5), "src must be a worker from 0 to 0"),
            (lambda: worker.barrier(limit_s=0), "limit_s"),
        ):
            with pytest.raises(UsageError, match=says):
                wrong()

    run_workers(one_shard, body)


def step(table: ps.Table) -> None:
    table.push({"w": torch.ones(3)})
    table.pull().result(LIMIT_S)


@pytest.mark.parametrize(("consistency", "steps"), [("bsp", 9), ("ssp:1", 8), ("asp", 2)])
def test_one_that_waits_in_a_call_abstains_from_the_steps_that_others_need_of_it(
    one_shard, consistency, steps
):
    """The gate opens as it does for steps that were taken: under ssp one step later than under bsp."""
    job = fresh_name()

    def body(worker: ps.Worker) -> tuple[float, int]:
        table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
        for _ in range(2 if worker.rank == 0 else 9):
            step(table)
        total = worker.all_reduce(float(worker.rank + 1), op="sum")
        taken = table.step
        worker.finish()
        return total, taken

    first, second = run_workers(one_shard, body, num_workers=2, consistency=consistency, job=job)
    assert first == (3.0, steps)
    assert second == (3.0, 9)
    counts = figures(one_shard, job, 0)
    assert counts["abstained"] == (steps - 2) * partitions(one_shard, job)


def test_who_waits_in_a_call_abstains_on_each_table_as_the_others_step_it(one_shard):
    """Two optimizers, one with overlap: what others need first is first; gradients that are there stay."""

    def body(worker: ps.Worker) -> tuple[float, int, int]:
        one, other = both = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        optimizers = [
            worker.wrap(torch.optim.SGD(it.parameters(), lr=0.1), it, overlap=it is one) for it in both
        ]
        for number in range(4 if worker.rank else 2):
            for model, optimizer in zip((other, one), reversed(optimizers), strict=True):
                for _ in range(1 + (number + worker.rank > 3 and model is one)):
                    train(model, optimizer, DATA.tensors[0])
        one.zero_grad()
        with optimizers[0].no_sync():
            one(DATA.tensors[0]).sum().backward()
        before = one.weight.grad.clone()
        total = worker.all_reduce(1.0, op="sum")
        assert torch.equal(one.weight.grad, before)
        for optimizer in optimizers:
            optimizer.step()
        worker.finish()
        return total, optimizers[0].step_number, optimizers[1].step_number

    first, second = run_workers(one_shard, body, num_workers=2)
    assert first == second == (2.0, 6, 5)


def test_a_call_in_the_middle_of_a_step_takes_no_other_step(one_shard):
    """Part of its gradients has left: it can only wait, as long as it wants to."""
    over = threading.Event()

    def body(worker: ps.Worker) -> int:
        model = torch.nn.Linear(2, 1)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, overlap=True)
        train(model, optimizer, DATA.tensors[0])
        if worker.rank == 0:
            model(DATA.tensors[0]).sum().backward()
            with pytest.raises(CallLimitExceeded, match="missing: worker 1"):
                worker.barrier(limit_s=1.0)
            over.set()
            optimizer.step()
        train(model, optimizer, DATA.tensors[0])
        assert over.wait(LIMIT_S)
        if worker.rank:
            train(model, optimizer, DATA.tensors[0])
        worker.finish()
        return optimizer.step_number

    assert run_workers(one_shard, body, num_workers=2) == [3, 3]


def test_who_is_sent_to_the_call_that_it_waits_in_goes_on_behind_it():
    """It was evicted in it, and the others have yet to make it: the next one is another."""
    asked: list[int] = []

    def collect(request, _limit_s):
        asked.append(request.number)
        if request.number == 1:
            calls.go_on_at(1)
        return pb.CollectReply(number=request.number, done=True)

    calls = Together(
        collect, alone=lambda: False, step=lambda: 1, incarnation=lambda: 1, returns=lambda: False
    )
    calls.begin()
    for _ in range(3):
        calls.barrier(1.0)
        calls.arrive()
    assert asked == [0, 1, 2]


def test_who_was_sent_to_the_call_that_comes_next_makes_it_though_it_gets_no_batch_before():
    """It joined again in the same epoch, of which it has no share left; what it is sent back from is void."""
    asked: list[int] = []
    returns = True

    def collect(request, _limit_s):
        asked.append(request.number)
        return pb.CollectReply(number=request.number, done=True)

    calls = Together(
        collect, alone=lambda: False, step=lambda: 1, incarnation=lambda: 1, returns=lambda: returns
    )
    calls.begin()
    calls.barrier(1.0)
    calls.go_on_at(1)
    calls.barrier(1.0)  # of an epoch that its loop leaves
    returns = False
    calls.barrier(1.0)
    assert asked == [0, 1]
