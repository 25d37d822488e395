"""torch.compile: the bytes of plain torch compiled in the same way, and nothing compiles again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, nop
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

import ps_worker as ps
from tests.component.differing import refused
from tests.component.models import Mlp, Normed, Tied
from tests.component.reference import Script, alone, assert_same, batch, check, in_turns, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of

# torch's own, where what it compiles is not the first that takes part in autograd
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)  # every parameter is a bucket
STEPS = 4

Compile = Callable[[torch.nn.Module, str], Callable[..., torch.Tensor]]

backends = pytest.mark.parametrize("backend", ["eager", "aot_eager"])
overlaps = pytest.mark.parametrize("overlap", [False, True, "auto"])


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(13, 13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inside(x))


class Stack(torch.nn.Module):
    """torch's own modules cannot be compiled by themselves with `fullgraph`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Residual()
        self.second = Residual()
        self.last = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x)))


def adam(model: torch.nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


def whole(model: torch.nn.Module, backend: str) -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


def in_place(model: torch.nn.Module, backend: str) -> Any:
    model.compile(backend=backend, fullgraph=True)
    return model


def submodules(model: torch.nn.Module, backend: str) -> Any:
    for child in list(model.children())[1:]:
        child.compile(backend=backend, fullgraph=True)
    return model


def loop(compile_: Compile, backend: str, *, dtype: torch.dtype | None = None) -> Script:
    """An ordinary loop over a compiled model; `dtype` is autocast's."""

    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        forward = compile_(model, backend)
        for step in range(STEPS):
            with torch.autocast("cpu", dtype) if dtype else nullcontext():
                loss = forward(batch(rank, step, 4, 13)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return script


@overlaps
@backends
@pytest.mark.parametrize("compile_", [whole, in_place, submodules], ids=lambda compile_: compile_.__name__)
def test_a_compiled_model_gives_the_bytes_of_plain_torch(
    cluster: Cluster, compile_: Compile, backend: str, overlap: Any
):
    """With overlap too, though all hooks fire at the end of a compiled backward."""
    script = in_turns(loop(compile_, backend))
    check(cluster, script, seeded(Stack), adam, num_workers=2, overlap=overlap, buckets=EACH)
    assert counters["stats"]["unique_graphs"]


def sequential() -> torch.nn.Module:
    return torch.nn.Sequential(Residual(), torch.nn.Linear(13, 13), Mlp())


@overlaps
@backends
def test_a_compiled_module_of_torchs_own_gives_the_bytes_of_plain_torch(
    cluster: Cluster, backend: str, overlap: Any
):
    """Dynamo goes through the hooks of such a one; the first step after they are watched compiles again."""
    script = loop(lambda model, backend: torch.compile(model, backend=backend), backend)
    check(cluster, script, seeded(sequential), adam, overlap=overlap, buckets=EACH, carrier="tcp")
    assert counters["stats"]["unique_graphs"]


@backends
@pytest.mark.parametrize("make", [Normed, Mlp], ids=lambda make: make.__name__)
def test_a_compiled_model_under_autocast(cluster: Cluster, make: type[torch.nn.Module], backend: str):
    script = in_turns(loop(whole, backend, dtype=torch.bfloat16))
    check(cluster, script, seeded(make), adam, num_workers=2)


@backends
def test_a_compiled_model_with_tied_weights(cluster: Cluster, backend: str):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        forward = whole(model, backend)
        for step in range(STEPS):
            forward(torch.tensor([rank, step, 7])).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    check(cluster, in_turns(script), seeded(Tied), adam, num_workers=2, overlap=True)


@overlaps
@backends
@pytest.mark.parametrize("compile_", [whole, submodules], ids=lambda compile_: compile_.__name__)
def test_nothing_compiles_again_after_step_2(cluster: Cluster, compile_: Compile, backend: str, overlap: Any):
    def body(worker: ps.Worker) -> list[int]:
        model = seeded(Stack)
        optimizer = worker.wrap(adam(model), model, overlap=overlap)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        forward = compile_(model, backend)
        graphs = []
        for step in range(6):
            stance = "fail_on_recompile" if step >= 2 else "default"
            with torch.compiler.set_stance(stance):
                forward(batch(0, step, 4, 13)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            graphs.append(counters["stats"]["unique_graphs"])
        return graphs

    (graphs,) = run_workers(cluster, body)
    assert graphs[0] > 0
    assert set(graphs[1:]) == {graphs[1]}


@backends
def test_a_model_that_was_compiled_and_run_before_wrap(cluster: Cluster, backend: str):
    """Its parameters move into the flat weights; its graphs go on with them."""
    expected, got = seeded(Mlp), seeded(Mlp)
    graphs = []

    def body(worker: ps.Worker) -> None:
        forward = whole(got, backend)
        forward(batch(0, 0, 4, 13)).square().mean().backward()
        got.zero_grad()
        graphs.append(counters["stats"]["unique_graphs"])
        optimizer = worker.wrap(adam(got), got)
        loop(lambda *_: forward, backend)(0, got, optimizer)
        graphs.append(counters["stats"]["unique_graphs"])
        worker.finish()

    run_workers(cluster, body)
    assert graphs == [1, 1]
    assert_same(got, alone(loop(whole, backend), expected, adam))


def test_what_torch_compile_returns_can_be_wrapped(cluster: Cluster):
    """`worker.wrap(optimizer, compiled)` in place of the model itself."""
    expected, got = seeded(Mlp), seeded(Mlp)

    def body(worker: ps.Worker) -> None:
        compiled = whole(got, "aot_eager")
        loop(lambda *_: compiled, "")(0, got, worker.wrap(adam(compiled), compiled))
        worker.finish()

    run_workers(cluster, body)
    assert_same(got, alone(loop(whole, "aot_eager"), expected, adam))


@overlaps
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_compiled_function_that_steps_runs_the_step_outside_its_graphs(
    cluster: Cluster, num_workers: int, overlap: Any
):
    """Forward, backward, accumulation and `optimizer.step()` in one compiled function."""

    def script(rank: int, model: torch.nn.Module, optimizer: Any) -> None:
        first_part = getattr(optimizer, "no_sync", nullcontext)
        if not isinstance(optimizer, ps.WrappedOptimizer):
            optimizer.step = torch.compiler.disable(optimizer.step)  # else compiled: not the fused kernel

        @torch.compile(backend="aot_eager")
        def train(x: torch.Tensor, y: torch.Tensor) -> None:
            with first_part():
                model(x).square().mean().backward()
            model(y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for step in range(STEPS):
            train(batch(rank, step, 4, 13), batch(rank, 100 + step, 4, 13))

    check(
        cluster, in_turns(script), seeded(Mlp), adam, num_workers=num_workers, overlap=overlap, buckets=EACH
    )


def test_a_closure_over_a_compiled_model(cluster: Cluster):
    def script(rank: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        forward = whole(model, "aot_eager")

        def closure(step: int) -> torch.Tensor:
            optimizer.zero_grad()
            loss = forward(batch(rank, step, 4, 13)).square().mean()
            loss.backward()
            return loss

        for step in range(STEPS):
            assert optimizer.step(lambda step=step: closure(step)) is not None

    check(cluster, script, seeded(Mlp), adam)


def test_alone_a_compiled_model_gives_the_bytes_of_plain_torch():
    """Over the in-memory carrier, and nothing compiles after step 2 there either."""
    expected, got = seeded(Stack), seeded(Stack)
    with ps.connect(servers="none") as worker:
        optimizer = worker.wrap(adam(got), got)
        forward = whole(got, "aot_eager")
        graphs = []
        for step in range(STEPS):
            forward(batch(0, step, 4, 13)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            graphs.append(counters["stats"]["unique_graphs"])
        worker.finish()
    assert set(graphs[1:]) == {graphs[1]}
    assert_same(got, alone(loop(whole, "aot_eager"), expected, adam))


def test_nothing_leaves_while_a_compiled_backward_is_running(cluster: Cluster):
    """It is one node of autograd's graph, which gives all gradients when it is done; then buckets leave."""
    seen: list[int] = []

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(adam(model), model, overlap=True, buckets=EACH)
        exchange = exchange_of(optimizer)

        def backward_of(graph: torch.fx.GraphModule, _: Any) -> Any:
            def run(*inputs: Any) -> Any:
                gradients = graph(*inputs)
                seen.append(exchange.bytes_pushed)
                return gradients

            return make_boxed_func(run)

        backend = aot_autograd(fw_compiler=nop, bw_compiler=backward_of)
        torch.compile(model, backend=backend)(batch(0, 0, 4, 13)).square().mean().backward()
        seen.append(exchange.bytes_pushed)
        optimizer.step()
        assert exchange.bytes_pushed == seen[-1]

    run_workers(cluster, body)
    assert seen[0] == 0 < seen[1]


def test_a_compiled_model_has_other_names_than_the_model(cluster: Cluster):
    """Wrapped on one worker, and the model itself on the other, they do not fit: wrap the same on all."""

    def bring(worker: ps.Worker) -> None:
        model = whole(seeded(Mlp), "eager") if worker.rank else seeded(Mlp)
        worker.wrap(adam(model), model)

    assert "_orig_mod.first.weight" in refused(cluster, bring).message


@pytest.mark.integration  # imports and a C++ compiler: 10 s
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_inductor(cluster: Cluster):
    """Generated kernels take weights from any 64-byte boundary."""
    # Here, since processes that compile import torch first: twice the time. And the kernels are made before
    # anybody waits for them. What the CPU says of its instructions is believed: to try them takes 8 s.
    with torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": True}):
        whole(seeded(Mlp), "inductor")(batch(0, 0, 4, 13)).square().mean().backward()
        check(cluster, loop(whole, "inductor"), seeded(Mlp), adam, overlap=True, buckets=EACH)
