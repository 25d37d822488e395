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
from tests.component.arriving import (
    PAGES,
    STEPS,
    Model,
    adam,
    arriving,
    bare,
    exchange_of,
    partitions_of,
    script,
    train,
)
from tests.component.last_moment import LastMoment
from tests.component.reference import alone, assert_same, batch, check, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import arrival_of

# torch's own, of what it compiles
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


# -- the result ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consistency", "carrier", "num_workers", "views"),
    [
        ("bsp", "auto", 2, False),
        ("bsp", "tcp", 2, True),
        ("ssp:1", "auto", 1, False),
        ("ssp:1", "uds", 1, False),
    ],
)
@pytest.mark.parametrize("every", [1, 3])
def test_weights_that_come_at_the_last_moment_give_the_bytes_of_plain_torch(
    cluster: Cluster, consistency: str, carrier: str, num_workers: int, views: bool, every: int
):
    """All partitions are held back, or another third in each step, mapped, copied and received."""
    models = [seeded(Model) for _ in range(num_workers)]
    expected = alone(script, models[0], adam, num_workers=num_workers)

    def body(worker: ps.Worker) -> int:
        model = models[worker.rank]
        optimizer = worker.wrap(
            adam(model), model, overlap=True, buckets=PAGES, gradient_as_bucket_view=views
        )
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
        assert not arrival_of(optimizer).under_way  # by the last module's wait all were here

    arriving(cluster, body)
    assert ran == ["into", "first", "second", "last"]


class Forks(nn.Module):
    """`side` is called in some forwards only."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(64, 48, bias=False)
        self.side = nn.Linear(48, 48, bias=False)
        self.last = nn.Linear(48, 64, bias=False)

    def forward(self, x: torch.Tensor, *, aside: bool = True) -> torch.Tensor:
        hidden = self.into(x)
        return self.last(self.side(hidden) if aside else hidden)


def test_the_first_push_of_a_step_leaves_after_all_weights_of_the_pull_before(cluster: Cluster):
    """R1: also after those of a module that this forward does not call, and that nobody has waited for."""
    whole: list[bool] = []

    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        exchange = exchange_of(optimizer)
        push = exchange.push

        def pushing(*args: Any, **options: Any) -> None:
            whole.append(exchange.all_pulled)
            push(*args, **options)

        exchange.push = pushing
        optimizer.zero_grad()
        loss = model(batch(0, 3, 2, 3, 64), aside=False).square().mean()
        assert not exchange.all_pulled
        loss.backward()
        assert whole, "a bucket has left from its hook"
        optimizer.step()

    arriving(cluster, body, model=seeded(Forks))
    assert all(whole)


def test_a_module_that_is_never_called_is_waited_for_at_the_next_one_above(cluster: Cluster):
    def body(_worker: ps.Worker, model: Any, optimizer: Any, _moments: LastMoment) -> None:
        waits = arrival_of(optimizer)._hooks._waits
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
    return torch.compile(model, backend="eager", fullgraph=True)


def parts(model: Any) -> Any:
    model.first.feed.compile(backend="eager", fullgraph=True)
    model.second = torch.compile(model.second, backend="eager", fullgraph=True)
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


def test_a_model_that_is_wrapped_can_be_copied_and_saved_and_the_copy_knows_no_worker(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        model = seeded(Model)
        worker.wrap(adam(model), model, buckets=PAGES)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(copied(batch(0, 0, 2, 3, 64)), model(batch(0, 0, 2, 3, 64)))
            assert [hook.__self__._tell for hook in copied._forward_pre_hooks.values()] == [None]

    run_workers(cluster, body)
