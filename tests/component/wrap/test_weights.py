"""Parameters that move or are changed after wrap: followed with the bytes of torch, or an error by name."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.memory.staging import HostStaging, Stagings
from ps_worker.memory.table_memory import Sharing, TableMemory
from ps_worker.optimizer.shown_weights import WINDOW_ELEMENTS, ShownWeights
from ps_worker.optimizer.written_copies import PART_ELEMENTS
from tests.component.models import Mlp
from tests.component.reference import assert_same, check, seeded
from tests.component.scripts import STEPS, sgd, train
from tests.component.service import Cluster, run_workers
from tests.inside import exchange_of

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

# -- moved ---------------------------------------------------------------------------------------------


def shares(model: nn.Module) -> None:
    model.share_memory()


def pickles(model: nn.Module) -> None:
    """As for a process of torch.multiprocessing: the storages move into shared memory."""
    ForkingPickler.dumps(model)


@pytest.mark.parametrize("move", [shares, pickles], ids=lambda move: move.__name__)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_model_that_moves_into_shared_memory_trains_on(cluster: Cluster, num_workers: int, move: Any):
    def script(rank: int, model: nn.Module, optimizer: Any) -> None:
        train(rank, model, optimizer, range(2))
        move(model)
        assert all(parameter.is_shared() for parameter in model.parameters())
        train(rank, model, optimizer, range(2, STEPS))
        assert all(parameter.is_shared() for parameter in model.parameters())

    check(cluster, script, seeded(Mlp), sgd, num_workers=num_workers)


@pytest.mark.parametrize("move", [shares, pickles], ids=lambda move: move.__name__)
def test_a_model_that_moves_before_finish_gets_the_final_weights(cluster: Cluster, move: Any):
    """The other worker goes on by itself, so they are new."""
    models = [seeded(Mlp), seeded(Mlp)]

    def body(worker: ps.Worker) -> None:
        model = models[worker.rank]
        optimizer = worker.wrap(sgd(model), model)
        train(worker.rank, model, optimizer, range(2 + 2 * worker.rank))
        if worker.rank == 0:
            move(model)
        worker.finish()

    run_workers(cluster, body, num_workers=2)
    assert_same(*models)


def test_a_graph_of_before_the_weights_were_asked_for_goes_through_no_backward():
    """The memory that it has read may be written from then on, long before all weights are here."""
    spec = TableSpec(
        number=0,
        parameters=(ParameterSpec(name="p", shape=(3000,)),),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),))),
    )
    parameter = nn.Parameter(torch.ones(3000))
    memory = TableMemory(Plan(spec, 1), Sharing.PRIVATE)
    weights = ShownWeights(memory, {"p": parameter}, memory.partitions)
    loss = parameter.square().sum()
    weights.expect()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- changed -------------------------------------------------------------------------------------------


def test_a_parameter_cut_short_where_it_lies_is_named(cluster: Cluster):
    """Its memory begins where it began; a gradient of one element would be spread over all."""

    def body(worker: ps.Worker) -> None:
        model = nn.Module()
        model.p = nn.Parameter(torch.ones(4))
        optimizer = worker.wrap(sgd(model), model)
        model.p.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.p.data = model.p.data[:1]
        model.p.sum().backward()
        with pytest.raises(ps.ConfigurationRefused, match=r"'p' had shape \(4,\).* has \(1,\) now"):
            optimizer.step()

    run_workers(cluster, body)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("end", ["step", "finish"])
def test_a_model_that_changes_its_dtype_after_wrap_is_refused(cluster: Cluster, dtype: torch.dtype, end: str):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(sgd(model), model)
        train(0, model, optimizer)
        model.to(dtype)
        with pytest.raises(
            ps.ConfigurationRefused, match=rf"'first.weight' was torch.float32 .* is {dtype} now"
        ):
            optimizer.step() if end == "step" else worker.finish()

    run_workers(cluster, body)


def test_a_large_model_that_is_written_past_autograd_in_each_step_is_found_within_some_steps(
    cluster: Cluster,
):
    """A window of the weights is compared in each step, and they have four; so the first writes are lost."""

    def body(worker: ps.Worker) -> None:
        model = nn.Linear(3, WINDOW_ELEMENTS)
        buckets = ps.BucketOptions(bucket_bytes=1 << 30, first_bucket_bytes=1 << 30)
        optimizer = worker.wrap(sgd(model), model, buckets=buckets, overlap=False)
        (flat,) = exchange_of(optimizer).weights.tensors

        def steps() -> None:
            for _ in range(5):
                model.weight.data[-1].clamp_(-1e-4, 1e-4)
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        assert flat.numel() == 4 * WINDOW_ELEMENTS
        with pytest.raises(ps.WeightsChanged, match="a parameter was written by the script after wrap"):
            steps()
        assert optimizer.step_number > 0

    run_workers(cluster, body, carrier="uds")  # where weights are mapped, their pages are looked at


on_devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])], ids=["smaller dtype", "gpu"]
)
TINY = 1e-6


class Written:
    """A model to which weights are copied, and a loop over it that writes past autograd if it is to."""

    def __init__(self, worker: ps.Worker, device: str, elements: int, *, overlap: bool) -> None:
        model = nn.Linear(3, elements, bias=False).to(device)
        self.model = model if device == "cuda" else model.bfloat16()
        self.optimizer = worker.wrap(sgd(self.model), self.model, overlap=overlap)
        self.x = torch.ones(1, 3, device=device, dtype=self.model.weight.dtype)
        self._worker = worker

    def write(self) -> None:
        self.model.weight.data[-1].clamp_(-TINY, TINY)

    def steps(self, count: int, *, writes: str = "") -> None:
        for _ in range(count):
            self.model(self.x).float().square().mean().backward()
            if writes == "before step":
                self.write()
            self.optimizer.step()
            if writes == "after step":
                self.write()
            self.optimizer.zero_grad()
        self._worker.synchronize()


@on_devices
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("writes", ["before step", "after step"])
def test_what_is_written_past_autograd_where_weights_are_copied_is_found_within_some_steps(
    cluster: Cluster, device: str, overlap: bool, writes: str
):
    """A part of it is compared in each step, and the next one says so; it has three parts.

    With overlap what is written after a step is written before the weights of that step have come.
    """

    def body(worker: ps.Worker) -> None:
        made = Written(worker, device, PART_ELEMENTS, overlap=overlap)
        made.steps(7)
        with pytest.raises(
            ps.WeightsChanged, match="parameter 'weight' was written by the script after wrap"
        ):
            made.steps(6, writes=writes)
        made.optimizer.abandon()
        made.optimizer.zero_grad()
        made.steps(7)

    run_workers(cluster, body, carrier="uds")


@on_devices
@pytest.mark.parametrize("overlap", [True, False])
def test_the_error_undoes_what_was_written_where_weights_are_copied(
    cluster: Cluster, device: str, overlap: bool
):
    """All of it is compared in each step."""

    def body(worker: ps.Worker) -> None:
        made = Written(worker, device, 8, overlap=overlap)
        made.steps(3)
        with pytest.raises(ps.WeightsChanged):
            made.steps(2, writes="before step")
        (shown,) = exchange_of(made.optimizer).memory.shown().views
        assert torch.equal(made.model.weight.detach().cpu(), shown.to(made.model.weight.dtype))
        assert (made.model.weight[-1].abs() > TINY).all()
        made.optimizer.abandon()
        made.optimizer.zero_grad()
        made.steps(5)

    run_workers(cluster, body, carrier="uds")


def test_weights_wait_until_they_were_compared_for_the_last_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """On an accelerator they come on a stream of their own, which waits for what was marked as read."""
    said: list[str] = []
    reads_end = Stagings.reads_end

    class Noting(HostStaging):
        def out(self, views: Any, gradients: Any) -> Any:
            said.extend(["compared"] * (gradients[0].dtype is torch.bool))
            return super().out(views, gradients)

        def into(self, targets: Any, views: Any) -> None:
            said.append("weights")
            super().into(targets, views)

    def ends(stagings: Stagings) -> None:
        said.append("marked")
        reads_end(stagings)

    monkeypatch.setattr(Stagings, "of", lambda *_: Noting())
    monkeypatch.setattr(Stagings, "reads_end", ends)

    def body(worker: ps.Worker) -> None:
        Written(worker, "cpu", 8, overlap=False).steps(4)

    run_workers(cluster, body, carrier="uds")
    every = " ".join(said)
    assert "compared marked weights" in every
    assert "compared weights" not in every


def test_weights_that_ctrl_c_has_left_uncounted_are_nothing_that_was_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """They were copied, and not noted yet."""
    into = HostStaging.into

    def interrupted(staging: HostStaging, targets: Any, views: Any) -> None:
        into(staging, targets, views)
        raise KeyboardInterrupt

    def body(worker: ps.Worker) -> None:
        made = Written(worker, "cpu", 8, overlap=False)
        made.steps(3)
        made.model(made.x).float().square().mean().backward()
        with monkeypatch.context() as patch:
            patch.setattr(HostStaging, "into", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.optimizer.step()
        made.optimizer.zero_grad()
        made.steps(4)

    run_workers(cluster, body, carrier="uds")


# -- memory --------------------------------------------------------------------------------------------


def ties_parameters(model: Any) -> None:
    model.second.weight.data = model.first.weight.data


def views_a_parameter(model: Any) -> None:
    model.register_buffer("seen", model.first.weight.detach()[2:])


@pytest.mark.parametrize(
    ("tie", "names"),
    [
        (ties_parameters, "'first.weight' and 'second.weight'"),
        (views_a_parameter, "'first.weight' and 'seen'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_parameter_that_shares_memory_is_refused_by_both_names(cluster: Cluster, tie: Any, names: str):
    """Wrap would untie them."""

    def body(worker: ps.Worker) -> None:
        model = Mlp(13)
        model.second = nn.Linear(13, 13)
        tie(model)
        with pytest.raises(ps.ConfigurationRefused, match=f"{names} share memory.* make them one parameter"):
            worker.wrap(sgd(model), model)

    run_workers(cluster, body)


def test_parameters_between_each_others_elements_are_trained_as_in_torch(cluster: Cluster):
    """Pieces of one memory without a common element, as flattened RNN weights or halves of a matrix are."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(13, 6)
            self.left, self.right = nn.Parameter(whole[:, :3]), nn.Parameter(whole[:, 3:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.left).tanh() * (x @ self.right)

    check(cluster, train, seeded(Halves), sgd, num_workers=2)


def test_a_view_that_was_taken_before_wrap_keeps_the_old_weights_and_one_taken_later_follows(
    cluster: Cluster,
):
    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        before, start = model.first.weight.detach().numpy(), model.first.weight.detach().clone()
        optimizer = worker.wrap(sgd(model), model)
        after = model.first.weight.detach().numpy()
        train(0, model, optimizer)
        assert torch.equal(torch.from_numpy(before), start)
        assert torch.equal(torch.from_numpy(after), model.first.weight)
        assert not torch.equal(model.first.weight, start)

    run_workers(cluster, body)
