"""With overlap the next forward waits module by module, and nothing is read or written at the wrong time."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_worker import worker_state

from .last_moment import LastMoment
from .reference import alone, assert_same, batch, check, seeded
from .service import Cluster, fresh_name, run_workers

# torch's own, of what it compiles
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

PAGES = ps.BucketOptions(bucket_bytes=16_384, first_bucket_bytes=4096, partition_bytes=4096)
STEPS = 5


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 96, bias=False)
        self.down = nn.Linear(96, 48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    """Attention's `out_proj` is a module whose own forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(48, 2, batch_first=True)
        self.feed = Feed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed(x)


class Model(nn.Module):
    """Tensors of several pages; `scale` is the model's own, `out.weight` is `into.weight`."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(64, 48, bias=False)
        self.first = Block()
        self.second = Block()
        self.scale = nn.Parameter(torch.full((48,), 0.5))
        self.out = nn.Linear(64, 48, bias=False)
        self.out.weight = self.into.weight
        self.last = nn.Linear(48, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(self.into(x))) * self.scale
        return self.out(self.last(hidden))


def adam(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, **kind)


def exchange_of(optimizer: Any) -> Any:
    return optimizer._tables[0].exchange


def partitions_of(optimizer: Any, model: nn.Module, name: str) -> frozenset[int]:
    (table,) = optimizer._arrival._tables
    return table.partitions_of[table.place_of[id(model.get_parameter(name))]]


def train(model: nn.Module, optimizer: Any, steps: Any, rank: int = 0, forward: Any = None) -> None:
    for step in steps:
        optimizer.zero_grad()
        (model if forward is None else forward)(batch(rank, step, 2, 3, 64)).square().mean().backward()
        optimizer.step()


def script(rank: int, model: nn.Module, optimizer: Any) -> None:
    train(model, optimizer, range(STEPS), rank)


def arriving(
    cluster: Cluster, body: Callable[[ps.Worker, Any, Any, LastMoment], Any], *, model: Any = None, **kw: Any
) -> Any:
    """Calls `body` after three steps; all weights of the fourth are held back."""

    def run(worker: ps.Worker) -> Any:
        mine = model if model is not None else seeded(Model)
        optimizer = worker.wrap(adam(mine), mine, overlap=True, buckets=PAGES)
        moments = LastMoment(exchange_of(optimizer), lambda _partition, step: step == 3)
        train(mine, optimizer, range(3))
        assert optimizer._arrival.under_way
        return body(worker, mine, optimizer, moments)

    (result,) = run_workers(cluster, run, **kw)
    return result


def bare(model: nn.Module) -> bool:
    """Whether no module has anything of ours."""
    return not any(
        module._forward_pre_hooks or module._state_dict_pre_hooks or "__reduce_ex__" in module.__dict__
        for module in model.modules()
    )


# -- the result ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consistency", "carrier", "num_workers"),
    [("bsp", "auto", 2), ("bsp", "tcp", 2), ("ssp:1", "auto", 1), ("ssp:1", "uds", 1)],
)
@pytest.mark.parametrize("every", [1, 3])
def test_weights_that_come_at_the_last_moment_give_the_bytes_of_plain_torch(
    cluster: Cluster, consistency: str, carrier: str, num_workers: int, every: int
):
    """All partitions are held back, or another third in each step, mapped, copied and received."""
    models = [seeded(Model) for _ in range(num_workers)]
    expected = alone(script, models[0], adam, num_workers=num_workers)

    def body(worker: ps.Worker) -> int:
        model = models[worker.rank]
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=PAGES)
        moments = LastMoment(exchange_of(optimizer), lambda partition, step: (partition + step) % every == 0)
        script(worker.rank, model, optimizer)
        worker.finish()
        return len(moments.waited)

    waits = run_workers(cluster, body, num_workers=num_workers, consistency=consistency, carrier=carrier)
    assert min(waits) > STEPS
    for model in models:
        assert_same(model, expected)
        assert bare(model)


def test_a_module_runs_before_the_weights_of_later_ones_are_here(cluster: Cluster):
    ran: list[str] = []

    def body(_worker: ps.Worker, model: Any, optimizer: Any, moments: LastMoment) -> None:
        moments.waited.clear()
        for name in ("into", "first", "second", "last"):
            model.get_submodule(name).register_forward_hook(lambda *_, name=name: ran.append(name))
        seen = {}
        model.first.register_forward_hook(lambda *_: seen.update(first=set(chain(*moments.waited))))
        model(batch(0, 3, 2, 3, 64))
        last = partitions_of(optimizer, model, "last.weight")
        first = partitions_of(optimizer, model, "first.feed.down.weight")
        out_proj = partitions_of(optimizer, model, "first.attention.out_proj.weight")
        assert first <= seen["first"]
        assert out_proj <= seen["first"]
        assert not last <= seen["first"]
        assert optimizer._arrival.under_way  # the rest comes before the first push

    arriving(cluster, body)
    assert ran == ["into", "first", "second", "last"]


def test_a_module_that_is_never_called_is_waited_for_at_the_next_one_above(cluster: Cluster):
    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        waits = optimizer._arrival._hooks._waits
        attention = model.first.attention
        assert attention.out_proj not in waits
        assert id(attention.out_proj.weight) in waits[attention]
        assert waits[model] == {id(model.scale)}

    arriving(cluster, body)


def test_backward_through_a_graph_that_is_older_than_the_weights_raises_as_in_torch(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Model)
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=PAGES)
        train(model, optimizer, range(3))
        worker.synchronize()
        older = model(batch(0, 3, 2, 3, 64)).square().mean()
        model(batch(0, 4, 2, 3, 64)).square().mean().backward()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            older.backward()

    run_workers(cluster, body)


# -- who waits for everything --------------------------------------------------------------------------


READERS: dict[str, Callable[[ps.Worker, Any, Any], Any]] = {
    "synchronize": lambda worker, model, optimizer: worker.synchronize(),
    "state_dict": lambda worker, model, optimizer: model.state_dict(),
    "state_dict of a part": lambda worker, model, optimizer: model.second.state_dict(),
    "deepcopy": lambda worker, model, optimizer: copy.deepcopy(model),
    "pickle of a part": lambda worker, model, optimizer: pickle.dumps(model.first.feed.up),
    "torch.save": lambda worker, model, optimizer: torch.save(model, io.BytesIO()),
    "optimizer.state_dict": lambda worker, model, optimizer: optimizer.state_dict(),
    "finish": lambda worker, model, optimizer: worker.finish(),
    "leave": lambda worker, model, optimizer: worker.leave(),
    "abandon": lambda worker, model, optimizer: optimizer.abandon(),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_who_reads_weights_outside_a_forward_gets_them_all(cluster: Cluster, read: Any):
    model = seeded(Model)
    expected = alone(lambda _, plain, steps: train(plain, steps, range(3)), model, adam)

    def body(worker: ps.Worker, _model: Any, optimizer: Any, _moments: LastMoment) -> None:
        read(worker, model, optimizer)
        assert_same(model, expected)
        assert bare(model)

    arriving(cluster, body, model=model)
    assert_same(model, expected)


def test_in_eval_mode_a_module_waits_for_all_that_is_below_it(cluster: Cluster):
    """Fast paths of torch read parameters of modules that they do not call."""
    model = seeded(Model)
    expected = alone(lambda _, plain, steps: train(plain, steps, range(3)), model, adam)

    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        model.eval()
        with torch.inference_mode():
            model.register_forward_pre_hook(lambda *_: assert_same(model, expected))
            got = model(batch(0, 3, 2, 3, 64))
            assert torch.equal(got, expected.eval()(batch(0, 3, 2, 3, 64)))

    arriving(cluster, body, model=model)


# -- torch.compile -------------------------------------------------------------------------------------


def whole(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager", fullgraph=True)


def parts(model: Any) -> Any:
    model.first.feed.compile(backend="aot_eager", fullgraph=True)
    model.second = torch.compile(model.second, backend="aot_eager", fullgraph=True)
    return model


@pytest.mark.parametrize("compile_", [whole, parts], ids=lambda it: it.__name__)
def test_a_compiled_module_waits_outside_its_graph_and_nothing_compiles_again(
    cluster: Cluster, compile_: Any
):
    torch._dynamo.reset()

    def compiled(rank: int, model: nn.Module, optimizer: Any) -> None:
        if isinstance(optimizer, ps.WrappedOptimizer):
            LastMoment(exchange_of(optimizer), lambda *_: True)
        forward = compile_(model)
        for step in range(STEPS):
            with torch.compiler.set_stance("fail_on_recompile" if step else "default"):
                train(model, optimizer, [step], rank, forward)

    check(cluster, compiled, seeded(Model), adam, overlap=True, buckets=PAGES)
    torch._dynamo.reset()


# -- what goes wrong -----------------------------------------------------------------------------------


def test_a_parameter_that_is_read_past_its_module_is_an_error_that_names_it(cluster: Cluster):
    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        optimizer.zero_grad()
        out = model.second(model.first(model.into(batch(0, 3, 2, 3, 64))))
        loss = (out @ model.last.weight.T).square().mean()
        with pytest.raises(ps.UsageError, match=r"'last\.weight' was read before its new weights were here"):
            loss.backward()

    arriving(cluster, body)


def test_what_a_script_writes_while_weights_arrive_is_found(cluster: Cluster):
    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        with torch.no_grad():
            model.last.weight.clamp_(-1e-3, 1e-3)
        with pytest.raises(ps.WeightsChanged, match=r"last\.weight"):
            train(model, optimizer, [3])

    arriving(cluster, body)


@pytest.mark.parametrize("first", [True, False])
def test_an_eviction_is_no_error_of_a_forward_and_its_gradient_is_dropped(cluster: Cluster, first: bool):
    """Found before anything was read, the pass sees the weights of now; else the next step() joins again."""
    job = fresh_name()

    def body(worker: ps.Worker, model: Any, optimizer: Any, moments: LastMoment) -> None:
        exchange, before = exchange_of(optimizer), worker.step
        seen = []

        def evict(*_: Any) -> None:
            cluster.evict(job, 0)
            with exchange._changed:
                assert exchange._changed.wait_for(lambda: exchange.evicted, 30)

        held = (
            range(exchange.plan.num_partitions) if first else partitions_of(optimizer, model, "last.weight")
        )
        moments.never.update(held)
        optimizer.zero_grad()
        if first:
            evict()
            moments.never.clear()
        hook = model.second.register_forward_hook(
            lambda *_: seen.append(exchange.evicted) if first else evict()
        )
        loss = model(batch(0, 3, 2, 3, 64)).square().mean()
        hook.remove()
        assert seen == [False] * first  # it had joined again by then
        loss.backward()
        moments.never.clear()
        optimizer.step()
        assert worker._link._now.joined.incarnation == 2
        train(model, optimizer, range(4, 6))
        assert worker.step >= before + 2
        worker.finish()

    arriving(cluster, body, job=job)


def test_who_leaves_before_its_weights_are_here_keeps_those_of_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_state, "SETTLE_LIMIT_S", 0.01)
    model = seeded(Model)
    expected = alone(lambda _, plain, steps: train(plain, steps, range(2)), model, adam)

    def body(worker: ps.Worker, _model: Any, optimizer: Any, moments: LastMoment) -> None:
        moments.never.update(range(exchange_of(optimizer).plan.num_partitions))
        assert exchange_of(optimizer).memory.mapped
        worker.leave()
        assert bare(model)

    arriving(cluster, body, model=model)
    assert_same(model, expected)


@pytest.mark.parametrize("overlap", [False, "auto"])
def test_without_overlap_or_before_it_is_decided_step_returns_with_all_weights(
    cluster: Cluster, overlap: Any
):
    model = seeded(Model)
    steps = 1 if overlap == "auto" else 3
    expected = alone(lambda _, plain, it: train(plain, it, range(steps)), model, adam)

    def body(worker: ps.Worker) -> None:
        optimizer = worker.wrap(adam(model), model, overlap=overlap, buckets=PAGES)
        LastMoment(exchange_of(optimizer), lambda *_: True)
        train(model, optimizer, range(steps))
        assert_same(model, expected)

    run_workers(cluster, body)


def test_while_modules_are_watched_a_copy_has_no_hooks(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Model)
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=PAGES)
        train(model, optimizer, range(1))
        assert optimizer._arrival._hooks.watching
        assert bare(copy.deepcopy(model))
        train(model, optimizer, range(1, 5))
        assert optimizer._arrival.under_way  # it was put off, not given up

    run_workers(cluster, body)
