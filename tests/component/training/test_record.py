"""`connect(record=...)` over a real service: what is in the file is what servers counted."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import UsageError
from ps_worker.recording import columns
from ps_worker.settings import read
from tests.component.service import figures, fresh_name, run_workers
from tests.scalars import scalars

STEPS = 6
COMPUTE_S = 0.02


def train(worker: ps.Worker) -> tuple[dict[int, int], ps.Stats]:
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 3)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    loader = worker.loader(torch.utils.data.TensorDataset(torch.ones(STEPS * 8, 40)), batch_size=4)
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(loss=loss, twice=loss.item() * 2)
    worker.finish()
    return worker.stats()


def recorded(folder: Path) -> dict[int, list[columns.StepRecord]]:
    found = {}
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        found[columns.decode_header(lines[0]).worker] = [columns.decode(line) for line in lines[1:]]
    return found


@pytest.mark.parametrize(
    ("model", "carrier"), [("bsp", "shm"), ("ssp:1", "uds"), ("asp", "tcp"), ("asp", "grpc")]
)
def test_a_line_per_step_says_what_became_of_its_push(one_shard, tmp_path, model, carrier):
    job = fresh_name()
    stats = run_workers(
        one_shard, train, num_workers=2, consistency=model, job=job, carrier=carrier, record=tmp_path
    )
    found = recorded(tmp_path)
    assert set(found) == {0, 1}
    taus: Counter[int] = Counter()
    for worker, steps in found.items():
        assert [it.step for it in steps] == [it.clock for it in steps] == list(range(STEPS))
        assert [(it.samples, it.dropped, it.abstained, it.retried) for it in steps] == [(4, 0, 0, 0)] * STEPS
        assert all(it.metrics["twice"] == it.loss * 2 for it in steps)
        assert sum(it.bytes_up for it in steps) == stats[worker].bytes_pushed
        assert max(it.gap for it in steps) == stats[worker].max_gap
        assert all(it.gate_s is not None for it in steps[:-1])
        if model == "asp":
            assert all(not it.gate_s for it in steps)
        taus.update(it.tau for it in steps)
        assert figures(one_shard, job, worker)["applied"] == STEPS
    staleness = stats[0].staleness
    assert max(taus) == staleness.max
    assert sum(tau * count for tau, count in taus.items()) / taus.total() == pytest.approx(staleness.mean)


def test_tables_are_recorded_and_what_waits_for_weights_waits(one_shard, tmp_path):
    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0))
        for _ in range(4):
            table.push({"w": torch.ones(10)})
            table.pull().result()

    run_workers(one_shard, body, consistency="asp", record=tmp_path)
    (steps,) = recorded(tmp_path).values()
    assert [(it.clock, it.tau, it.gap, it.samples) for it in steps] == [(n, 0, 0, 0) for n in range(4)]


def test_a_table_is_slow_by_what_its_worker_computed_since_the_step_before(
    one_shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A sleep takes no less than it is to, so no clock can be too quick for this."""
    monkeypatch.setenv("PS_STRAGGLER", "constant:f=4")

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(10)}, optimizer=ps.SGD(lr=1.0))
        for _ in range(4):
            time.sleep(COMPUTE_S)
            table.push({"w": torch.ones(10)})
            table.pull().result()

    run_workers(one_shard, body, consistency="asp", record=tmp_path)
    (steps,) = recorded(tmp_path).values()
    assert all(it.ended_s - it.started_s >= 4 * COMPUTE_S - 1e-4 for it in steps[1:])


def test_a_bad_profile_names_its_variable_and_its_field():
    with pytest.raises(UsageError, match=r"straggler constant: f must be.*PS_STRAGGLER"):
        read({"PS_STRAGGLER": "constant:f=0"})
    assert read({"PS_STRAGGLER": "constant:f=2"}).stragglers.parts
    assert read({"PS_RECORD": "here"}).record == Path("here")


def test_the_first_worker_logs_for_tensorboard_at_its_steps(one_shard, tmp_path: Path):
    pytest.importorskip("tensorboard")
    run_workers(one_shard, train, num_workers=2, job="shown", log_dir=tmp_path)
    found = scalars(tmp_path / "shown")
    assert {name: [step for step, _ in points] for name, points in found.items()} == {
        "loss": list(range(1, STEPS + 1)),
        "twice": list(range(1, STEPS + 1)),
    }
    assert [twice for _, twice in found["twice"]] == [2 * loss for _, loss in found["loss"]]
    assert len(list((tmp_path / "shown").iterdir())) == 1
    assert read({"PS_LOG_DIR": "here"}).log_dir == Path("here")
