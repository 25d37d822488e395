"""The examples for Lightning, Accelerate and the Hugging Face Trainer: each trains with two workers.

Each is run once whole, and once again from the checkpoint in its middle: both end with the same bytes. What a
run leaves behind is read as a user would: checkpoints with torch and safetensors, events with TensorBoard.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from tests.component.loaders import made

from .processes import Process, Zygote
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUM_WORKERS = 2
PRELOADED = (
    *("pytorch_lightning", "accelerate", "transformers.trainer", "torch.utils.tensorboard"),
    *("transformers.models.gpt2.modeling_gpt2", "sklearn.datasets", "sklearn.model_selection"),
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
Run = Callable[..., str]


@pytest.fixture(scope="module")
def frameworks() -> Iterator[Zygote]:
    """Starts workers that have the frameworks imported already, which takes longer than all the training."""
    made = Zygote(*PRELOADED)
    yield made
    made.close()


@pytest.fixture(scope="module")
def run(frameworks: Zygote, cluster: Servers) -> Run:
    def run(script: str, *arguments: str | Path, consistency: str = "bsp", grouped: bool = False) -> str:
        """Runs an example to its end on both workers, or on both ranks of one; what the first one said."""
        options = ("--servers", cluster.option, "--job", fresh_job(), "--consistency", consistency)
        workers: list[Process] = []
        try:
            for number in range(NUM_WORKERS):
                place = ("--num-workers", str(NUM_WORKERS), "--worker", str(number))
                environment = dict(OFFLINE)
                if grouped:
                    place = ("--num-workers", "1", "--worker", "0", "--group-size", str(NUM_WORKERS))
                    environment |= {"PS_GROUP_RANK": str(number), "PS_LOCAL_RANK": str(number)}
                command = ("ps-worker", *options, *place, str(EXAMPLES / script), *map(str, arguments))
                workers.append(frameworks.start(*command, environment=environment))
            for worker in workers:
                assert worker.wait_end() == 0, worker.text
        finally:
            for worker in workers:
                worker.kill()
        return workers[0].text

    return run


@pytest.fixture(scope="module")
def lightning(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("lightning")
    return out, run("lightning_digits.py", "--epochs", "4", "--out", out)


@pytest.fixture(scope="module")
def accelerate(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("accelerate")
    return out, run("accelerate_digits.py", "--epochs", "4", "--out", out)


@pytest.fixture(scope="module")
def trainer(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("trainer")
    return out, run("trainer_tiny.py", *TINY, "--out", out)


TINY = ("--epochs", "2", "--samples", "512", "--accumulate", "2", "--batch-size", "8")


def scalars(folder: Path) -> dict[str, list[float]]:
    """All scalars that TensorBoard finds below a folder, by tag, in order of steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TensorBoard's own parts
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415
    found: dict[str, list[float]] = {}
    files = sorted(folder.rglob("events.out.tfevents.*"))
    assert files, list(folder.rglob("*"))
    for file in files:
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend(event.value for event in events.Scalars(tag))
    return found


def accuracy_of(text: str) -> float:
    found = re.search(r"test accuracy ([\d.]+)", text)
    assert found is not None, text
    return float(found[1])


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), (name, (value - other[name]).abs().max())


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The examples' training set."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second that other tests need not take
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    parts = train_test_split(pixels, torch.tensor(labels), test_size=0.2, random_state=0, stratify=labels)
    return parts[0], parts[2]


def batches_of(rank: int, batch_size: int) -> Iterator[Any]:
    """A worker's batches, epoch after epoch."""
    data = TensorDataset(*digits())
    loader = made(data, rank, NUM_WORKERS, batch_size=batch_size, shuffle=True)
    while True:
        yield from loader


def alone(model: nn.Module, optimizer: Any, scheduler: Any, *, batch_size: int, per_step: int) -> None:
    """Plain torch over 4 epochs: what two workers do, with each gradient clipped before the mean.

    Args:
        model: to train.
        optimizer: of torch.
        scheduler: stepped after each step of the optimizer.
        batch_size: of a worker.
        per_step: batches that a worker accumulates, each loss divided by it.
    """
    streams = [batches_of(rank, batch_size) for rank in range(NUM_WORKERS)]
    parameters = list(model.parameters())
    for _ in range(4 * -(-1437 // (NUM_WORKERS * batch_size)) // per_step):
        gradients = []
        for stream in streams:
            for batch in itertools.islice(stream, per_step):
                (nn.functional.cross_entropy(model(batch[0]), batch[1]) / per_step).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            gradients.append([parameter.grad.clone() for parameter in parameters])
            optimizer.zero_grad()
        for parameter, *each in zip(parameters, *gradients, strict=True):
            parameter.grad = sum(each[1:], each[0]) / NUM_WORKERS
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def assert_close(got: dict[str, torch.Tensor], expected: nn.Module) -> None:
    start = mlp().state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=1e-6)
        assert not torch.allclose(value, start[name], rtol=0, atol=1e-3)


# -- Lightning -----------------------------------------------------------------------------------------


def lightning_weights(out: Path) -> dict[str, torch.Tensor]:
    """Of the last checkpoint; 1437 samples in batches of 16 are 45 steps an epoch for each of two."""
    path = out / "checkpoints" / "epoch=3-step=180.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


def test_lightning_gives_what_plain_torch_gives(lightning: tuple[Path, str]) -> None:
    """With its closure, clipping, scheduler and loader."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.99), fused=True)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    steps = itertools.count(1)

    class PerEpoch:
        def step(self) -> None:
            if next(steps) % 45 == 0:
                cosine.step()

    alone(model, optimizer, PerEpoch(), batch_size=16, per_step=1)
    got = lightning_weights(lightning[0])
    assert_close({name.removeprefix("net."): value for name, value in got.items()}, model)


def test_lightning_writes_checkpoints_and_logs_once(lightning: tuple[Path, str]) -> None:
    out, text = lightning
    assert accuracy_of(text) > 0.85
    assert "Detected call of `lr_scheduler.step()`" not in text
    assert len(list((out / "checkpoints").iterdir())) == 4
    logged = scalars(out / "logs")
    assert logged["loss"][-1] < logged["loss"][0]
    assert logged["accuracy"][-1] == pytest.approx(accuracy_of(text), abs=1e-4)
    rates = logged["lr-Adam"]
    assert rates[0] == pytest.approx(2e-3)
    assert rates[-1] == pytest.approx(2.929e-4, rel=1e-3)


def test_lightning_goes_on_from_a_checkpoint(run: Run, lightning: tuple[Path, str], tmp_path: Path) -> None:
    checkpoint = lightning[0] / "checkpoints" / "epoch=1-step=90.ckpt"
    run("lightning_digits.py", "--epochs", "4", "--out", tmp_path, "--resume", checkpoint)
    assert_same(lightning_weights(tmp_path), lightning_weights(lightning[0]))


def test_lightning_trains_without_barriers(run: Run, tmp_path: Path) -> None:
    text = run("lightning_digits.py", "--epochs", "4", "--out", tmp_path, consistency="asp")
    assert accuracy_of(text) > 0.85


# -- Accelerate ----------------------------------------------------------------------------------------


def test_accelerate_gives_what_plain_torch_gives(accelerate: tuple[Path, str]) -> None:
    """With accumulation, clipping, scheduler and loader."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.5, 0.99), fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=4 * 90 // 2)
    alone(model, optimizer, scheduler, batch_size=8, per_step=2)
    assert_close(load_file(accelerate[0] / "epoch_4" / "model.safetensors"), model)


def test_accelerate_writes_checkpoints_and_logs_once(accelerate: tuple[Path, str]) -> None:
    out, text = accelerate
    assert accuracy_of(text) > 0.8
    assert len(list(out.glob("epoch_*"))) == 4
    state = torch.load(out / "epoch_4" / "optimizer.bin", weights_only=True)
    assert [int(each["step"]) for each in state["state"].values()] == [180] * 4
    logged = scalars(out / "logs")
    assert len(logged["loss"]) == len(logged["lr"]) == 4
    assert logged["loss"][-1] < logged["loss"][0]
    assert logged["accuracy"] == [pytest.approx(accuracy_of(text), abs=1e-4)]


def test_accelerate_goes_on_from_a_checkpoint(run: Run, accelerate: tuple[Path, str], tmp_path: Path) -> None:
    run("accelerate_digits.py", "--epochs", "4", "--out", tmp_path, "--resume", accelerate[0] / "epoch_2")
    weights = [load_file(out / "epoch_4" / "model.safetensors") for out in (tmp_path, accelerate[0])]
    assert len(weights[0]) == 4
    assert_same(*weights)


# -- Trainer -------------------------------------------------------------------------------------------


def test_trainer_learns_and_writes_checkpoints_and_logs_once(trainer: tuple[Path, str]) -> None:
    out, text = trainer
    assert re.search(r"loss [\d.]+ -> [\d.]+", text), text
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-16", "checkpoint-32"]
    weights = load_file(out / "checkpoint-32" / "model.safetensors")
    assert len(weights) == 28  # the tied head is the embedding, and is written once
    logged = scalars(out / "runs")
    assert 5.5 > logged["train/loss"][0] > logged["train/loss"][-1] + 0.3
    assert logged["train/learning_rate"][-1] < max(logged["train/learning_rate"])
    assert min(logged["train/grad_norm"]) > 0


def test_trainer_goes_on_from_a_checkpoint(run: Run, trainer: tuple[Path, str], tmp_path: Path) -> None:
    run("trainer_tiny.py", *TINY, "--out", tmp_path, "--resume", trainer[0] / "checkpoint-16")
    assert_same(*(load_file(out / "checkpoint-32" / "model.safetensors") for out in (tmp_path, trainer[0])))


def test_trainer_ends_well_after_fewer_steps_than_it_logs(run: Run, tmp_path: Path) -> None:
    text = run("trainer_tiny.py", "--epochs", "1", "--samples", "64", "--out", tmp_path)
    assert re.search(r"loss [\d.]+ -> [\d.]+", text), text


# -- in a group of ranks -------------------------------------------------------------------------------


def test_lightning_trains_in_a_group_and_writes_once(run: Run, tmp_path: Path) -> None:
    """Each rank's part of each batch, and the mean over ranks is clipped."""
    text = run("lightning_digits.py", "--epochs", "3", "--out", tmp_path, grouped=True)
    assert accuracy_of(text) > 0.85
    (last,) = (tmp_path / "checkpoints").glob("epoch=2-*.ckpt")
    saved = torch.load(last, weights_only=True)
    assert [len(it["state"]) for it in saved["optimizer_states"]] == [4]
    assert scalars(tmp_path / "logs")["accuracy"][-1] == pytest.approx(accuracy_of(text), abs=1e-4)


def test_accelerate_trains_in_a_group_and_writes_once(run: Run, tmp_path: Path) -> None:
    text = run("accelerate_digits.py", "--epochs", "3", "--out", tmp_path, grouped=True)
    assert accuracy_of(text) > 0.8
    assert len(list(tmp_path.glob("epoch_*"))) == 3
    assert len(scalars(tmp_path / "logs")["loss"]) == 3


def test_trainer_trains_in_a_group_and_writes_once(run: Run, tmp_path: Path) -> None:
    tiny = ("--epochs", "1", "--samples", "256", "--batch-size", "8")
    text = run("trainer_tiny.py", *tiny, "--out", tmp_path, grouped=True)
    assert re.search(r"loss [\d.]+ -> [\d.]+", text), text
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-16"]
