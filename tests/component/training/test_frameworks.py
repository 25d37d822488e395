"""What Lightning and Accelerate do with a wrapped optimizer, its model and its loader, call by call.

They are imported in the tests: that takes 4 s of a core, and each process of the tests reads this module.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ps_worker as ps
from ps_wire.errors import OptimizerUnsupported
from tests.component.models import Mlp, loss_of
from tests.component.reference import alone, assert_same, check, seeded
from tests.component.service import Cluster, fresh_name, run_workers

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STEPS = 4


def adamw(model: nn.Module, **kind: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **kind)


def accelerator_of(**options: Any) -> Any:
    from accelerate import Accelerator  # noqa: PLC0415

    return Accelerator(cpu=True, **options)


@pytest.fixture
def _accelerate() -> Iterator[None]:
    """Accelerate keeps its state in classes."""
    yield
    from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: PLC0415

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


# -- Accelerate ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_accelerate")
@pytest.mark.parametrize("device_placement", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_optimizer_after_wrap_can_be_prepared(
    cluster: Cluster, device_placement: bool, accumulate: int
) -> None:
    """With device placement Accelerate reads its state and sets it; the scheduler steps with it."""

    def script(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        accelerator = accelerator_of(
            device_placement=device_placement, gradient_accumulation_steps=accumulate
        )
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        for step in range(STEPS):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, rank, step))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        assert scheduler.get_last_lr() == [0.01 * 0.5 ** (STEPS // accumulate)]

    check(cluster, script, seeded(Mlp), adamw)


@pytest.mark.usefixtures("_accelerate")
def test_an_optimizer_before_wrap_must_not_be_prepared(cluster: Cluster) -> None:
    def body(worker: ps.Worker) -> None:
        model = Mlp()
        with pytest.raises(OptimizerUnsupported, match=r"AcceleratedOptimizer.*before a framework does"):
            worker.wrap(accelerator_of().prepare(adamw(model)), model)

    run_workers(cluster, body)


@pytest.mark.usefixtures("_accelerate")
def test_a_checkpoint_holds_all_weights(cluster: Cluster, tmp_path: Path) -> None:
    """Accelerate leaves out tensors that share a storage with others."""

    def body(worker: ps.Worker) -> None:
        model = Mlp()
        optimizer = worker.wrap(adamw(model), model)
        accelerator = accelerator_of()
        accelerator.prepare(model, optimizer)
        accelerator.save_state(str(tmp_path))
        saved = load_file(tmp_path / "model.safetensors")
        assert saved.keys() == model.state_dict().keys()
        assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())

    run_workers(cluster, body)


@pytest.mark.usefixtures("_accelerate")
@pytest.mark.parametrize("left_alone", [True, False])
def test_weights_that_load_state_writes_after_wrap_are_a_named_error(
    cluster: Cluster, tmp_path: Path, left_alone: bool
) -> None:
    """The hook of the example keeps Accelerate from writing them."""

    def body(worker: ps.Worker) -> None:
        model = Mlp()
        accelerator = accelerator_of()
        optimizer = worker.wrap(adamw(model), model)
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.save_state(str(tmp_path))
        if left_alone:
            accelerator.register_load_state_pre_hook(lambda models, _: models.clear())
        accelerator.load_state(str(tmp_path))
        loss_of(model, 0, 0).backward()
        if left_alone:
            optimizer.step()
        else:
            with pytest.raises(ps.WeightsChanged, match="load weights before wrap"):
                optimizer.step()

    run_workers(cluster, body)


def test_batches_are_skipped_by_the_loader_and_not_by_accelerate(cluster: Cluster) -> None:
    """As the Trainer does it when it goes on inside an epoch; `ignore_data_skip` leaves it to the loader."""
    from accelerate import skip_first_batches  # noqa: PLC0415

    def body(worker: ps.Worker) -> None:
        loader, whole = (worker.loader(torch.arange(12), batch_size=4) for _ in range(2))
        with pytest.raises(AttributeError, match="'Loader' object has no attribute 'sampler'"):
            skip_first_batches(loader, 1)
        loader.load_state_dict(loader.state_dict() | {"batches": 1})
        assert [each.tolist() for each in loader] == [each.tolist() for each in whole][1:]

    run_workers(cluster, body)


# -- Lightning -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Any:
    """The module `examples/lightning_digits.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module("lightning_digits")


def trainer_of(example: Any, strategy: Any, **options: Any) -> Any:
    return example.pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def strategy_of(example: Any, cluster: Cluster) -> Any:
    return example.ParameterServerStrategy(
        servers=cluster.servers, job=fresh_name(), consistency="bsp", num_workers=1, worker=0
    )


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(24, 1, 8, 8, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(24) % 10), batch_size=8)


def test_lightning_takes_a_wrapped_optimizer_for_one_of_its_class(cluster: Cluster) -> None:
    from pytorch_lightning.core.optimizer import LightningOptimizer  # noqa: PLC0415

    def body(worker: ps.Worker) -> None:
        model = seeded(Mlp)
        optimizer = worker.wrap(adamw(model), model)
        lightning = LightningOptimizer(optimizer)
        assert isinstance(lightning, ps.WrappedOptimizer)
        assert lightning.param_groups is optimizer.param_groups
        for step in range(STEPS):
            loss_of(model, 0, step).backward()
            optimizer.step()
            lightning.zero_grad()
        assert lightning.step_number == STEPS
        assert len(lightning.state_dict()["state"]) == len(list(model.parameters()))

    run_workers(cluster, body)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_fit_gives_what_it_gives_without_the_strategy(
    example: Any, cluster: Cluster, accumulate: int, clip: float | None
) -> None:
    class Fused(example.Digits):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            optimizer = adamw(self, fused=True)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)]

    weights = []
    for strategy in ("auto", strategy_of(example, cluster)):
        model = seeded(lambda: Fused(1e-3, 2))
        trainer = trainer_of(
            example, strategy, gradient_clip_val=clip, accumulate_grad_batches=accumulate, log_every_n_steps=1
        )
        trainer.fit(model, data(), data())
        assert trainer.lr_scheduler_configs[0].scheduler.get_last_lr() == [pytest.approx(1e-4)]
        weights.append(model)
    assert_same(weights[1], weights[0])


def test_every_worker_validates_on_all_the_data_and_needs_no_job_afterwards(
    example: Any, cluster: Cluster
) -> None:
    seen: list[int] = []

    class Counting(example.Digits):  # type: ignore[name-defined,misc]
        def validation_step(self, batch: Any, index: int) -> None:
            seen.append(len(batch[0]))
            super().validation_step(batch, index)

    strategy = strategy_of(example, cluster)
    trainer = trainer_of(example, strategy, num_sanity_val_steps=0, log_every_n_steps=1)
    model = Counting(1e-3, 2)
    trainer.fit(model, data(), data())
    assert sum(seen) == 2 * 24
    assert isinstance(trainer.train_dataloader, ps.Loader)
    worker = strategy.worker
    trainer.validate(model, data(), verbose=False)
    assert strategy.worker is worker


def test_an_exception_in_a_step_leaves_the_job(
    example: Any, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(example.Digits):  # type: ignore[name-defined,misc]
        def training_step(self, batch: Any, index: int) -> Any:
            if index == 1:
                raise RuntimeError("no such thing")
            return super().training_step(batch, index)

    strategy = strategy_of(example, cluster)
    trainer = trainer_of(example, strategy, log_every_n_steps=1)
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError, match="no such thing"):
        trainer.fit(Failing(1e-3, 2), data(), data())
    assert "RuntimeError: no such thing" in caplog.text
    with pytest.raises(ps.UsageError, match="has left job"):
        strategy.optimizers[0].step()


def test_workers_cannot_gather_from_each_other(example: Any) -> None:
    strategy = example.ParameterServerStrategy()
    value = torch.ones(3)
    assert strategy.all_gather(value) is value
    strategy.world_size = 2
    with pytest.raises(ps.UsageError, match="gather"):
        strategy.all_gather(value)


def test_a_scheduler_made_before_wrap_does_not_warn(cluster: Cluster) -> None:
    """Lightning makes schedulers first; torch warns of a scheduler that steps before its optimizer."""

    def body(worker: ps.Worker) -> nn.Module:
        model = seeded(Mlp)
        inner = adamw(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        optimizer = worker.wrap(inner, model)
        for step in range(STEPS):
            loss_of(model, 0, step).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        worker.finish()
        return model

    def plain(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(STEPS):
            loss_of(model, rank, step).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    (got,) = run_workers(cluster, body)
    assert_same(got, alone(plain, seeded(Mlp), adamw))
