"""The baseline without servers: DistributedDataParallel behind the face of a worker, here with one worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ps_worker as ps
from ps_lab.compare.progress import RecordsProgress
from ps_lab.compare.results import read_recordings
from ps_worker import settings
from ps_worker.group.ddp.ddp_worker import DdpWorker
from ps_worker.group.ddp.shown import ASK
from ps_worker.readers.ddp_reader import DdpReader

DATA = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.ones(6, 1))


class Net(nn.Module):
    """A model with a part that a script could call by itself, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(2, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.part(inputs)


@pytest.fixture(name="joined")
def _joined(tmp_path: Path) -> Iterator[DdpWorker]:
    given = {"PS_DDP": str(tmp_path), "PS_WORKER": "0", "PS_RECORD": str(tmp_path / "records")}
    with DdpWorker(settings.read(given)) as worker:
        yield worker


def reader_of(tmp_path: Path) -> DdpReader:
    return DdpReader(settings.read({"PS_DDP": str(tmp_path)}, role="reader"))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train(worker: Any, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int = 2) -> None:
    loader = worker.loader(DATA, batch_size=2, shuffle=False)
    for _ in worker.epochs(epochs):
        for inputs, wanted in loader:
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.log(loss=loss)


def test_one_worker_trains_as_a_script_does_alone_and_every_step_is_recorded(
    joined: DdpWorker, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, alone = Net(), Net()
    alone.load_state_dict(model.state_dict())
    optimizer = joined.wrap(sgd(model), model)
    train(joined, model, optimizer)
    joined.finish()
    joined.log(accuracy=0.5)
    joined.leave()

    by_itself = sgd(alone)
    for _ in range(2):
        for start in range(0, 6, 2):
            nn.functional.mse_loss(alone(DATA.tensors[0][start : start + 2]), torch.ones(2, 1)).backward()
            by_itself.step()
            by_itself.zero_grad()
    for name, value in alone.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    (recording,) = read_recordings(tmp_path / "records")
    assert recording.header.consistency == "ddp"
    assert [(step.step, step.clock, step.samples) for step in recording.steps] == [
        (at, at, 2) for at in range(6)
    ]
    assert all(step.tau is None and step.gate_s is None for step in recording.steps)
    assert recording.steps[-1].metrics == {"accuracy": 0.5}
    seen = RecordsProgress(tmp_path / "records", 1).seen
    assert seen is not None
    assert (seen.step, seen.samples, seen.metrics["accuracy"]) == (6, 12, 0.5)


def test_a_reader_gets_weights_of_one_step_and_then_the_final_ones(joined: DdpWorker, tmp_path: Path) -> None:
    model, mine = Net(), Net()
    optimizer = joined.wrap(sgd(model), model)
    reader = reader_of(tmp_path)
    with pytest.raises(ps.CutAborted, match="no step within"):
        reader.read(mine, limit_s=1e-6)
    assert (tmp_path / ASK).exists()
    train(joined, model, optimizer, epochs=1)
    joined.finish()
    cut = reader.read(mine)
    assert (cut.version, cut.ended, cut.buffers) == (3, True, "final")
    assert torch.equal(mine.part.weight, model.part.weight)
    assert torch.equal(mine.seen, model.seen)
    with pytest.raises(ps.PsError, match=r"'0.weight' has shape .* here; in the job it is missing"):
        reader.read(nn.Sequential(nn.Linear(2, 1)))


def test_a_question_is_answered_at_the_end_of_the_step_that_is_under_way(
    joined: DdpWorker, tmp_path: Path
) -> None:
    model, mine = Net(), Net()
    optimizer = joined.wrap(sgd(model), model)

    def steps(_seconds: float) -> None:
        train(joined, model, optimizer, epochs=1)

    reader = DdpReader(settings.read({"PS_DDP": str(tmp_path)}, role="reader"), sleep=steps)
    cut = reader.read(mine)
    assert (cut.version, cut.ended, cut.buffers_step) == (1, False, 1)


def test_the_model_computes_alone_again_when_its_worker_has_finished(joined: DdpWorker) -> None:
    model = Net()
    joined.wrap(sgd(model), model)
    through, seen = model.forward, float(model.seen)
    joined.finish()
    model(torch.ones(1, 2)).sum().backward()
    assert model.forward != through
    assert float(model.seen) == seen + 1


def test_what_a_baseline_does_not_have_is_refused_by_name(joined: DdpWorker) -> None:
    model = Net()
    with pytest.raises(ps.UsageError, match=r"worker\.table needs servers, and the baseline ddp has none"):
        joined.table({})
    with pytest.raises(ps.UsageError, match="weight='samples'"):
        joined.wrap(sgd(model), model, weight="samples")
    optimizer = joined.wrap(sgd(model), model)
    with pytest.raises(ps.UsageError, match="wrap was called before"):
        joined.wrap(optimizer, model)
    model.part(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ps.UsageError, match="no gradient was averaged before this step"):
        optimizer.step()


def test_the_mean_is_clipped_where_servers_would_clip_it(joined: DdpWorker) -> None:
    model = Net()
    optimizer = joined.wrap(sgd(model), model, clip_grad_norm=0.5)
    (1000 * model(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    norm = torch.stack([it.grad.norm() for it in model.parameters() if it.grad is not None]).norm()
    assert float(norm) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"PS_SERVERS": "127.0.0.1:50051", "PS_WORKER": "0"}, "PS_SERVERS"),
        ({"PS_WORKER": "4", "PS_NUM_WORKERS": "4"}, "from 0 to 3"),
        ({}, "PS_WORKER"),
    ],
)
def test_settings_that_do_not_fit_a_baseline_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ps.UsageError, match=said):
        settings.read({"PS_DDP": "/tmp/there", **given})


def test_a_reader_waits_for_weights_no_longer_than_it_is_to(tmp_path: Path) -> None:
    with pytest.raises(ps.JobUnknown, match="no worker shows weights in"):
        reader_of(tmp_path)
