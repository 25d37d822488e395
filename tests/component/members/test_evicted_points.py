"""A worker is evicted while it is at any point of a step: the batch in hand is dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.points import Points
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import link_of

EPOCHS, SAMPLES = 16, 24
POINTS = (
    "batch",
    "forward",
    "forward done",
    "backward",
    "backward done",
    "step done",
    "cleared",
    "evaluation",
)


class _Counting(torch.nn.Module):
    """The gradient of a sample's weight is -1 each time that it is in a batch."""

    def __init__(self, at: Any) -> None:
        super().__init__()
        self.seen = torch.nn.Linear(SAMPLES, 128, bias=False)
        torch.nn.init.zeros_(self.seen.weight)
        self._at = at

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        found = self.seen(torch.nn.functional.one_hot(samples, SAMPLES).float())
        self._at("forward")
        if found.requires_grad:
            found.register_hook(lambda _: self._at("backward"))
        return -found.sum()


@pytest.mark.parametrize(("overlap", "batches"), [(True, 1), (False, 1), (True, 2)])
def test_an_eviction_at_any_point_of_a_step_drops_the_batch_in_hand_and_no_other(
    one_shard: Cluster, overlap: bool, batches: int
):
    """Weights say how often each sample was used: once in each epoch, but for a last one without a step."""
    job = fresh_name()
    points = Points(POINTS, workers=1, happens=lambda: one_shard.evict(job, 0))
    points.first = 0

    def body(worker: ps.Worker) -> tuple[torch.Tensor, torch.Tensor, int]:
        batch = torch.zeros(SAMPLES)  # how often each is in the step that comes next
        due, begun = [0], 0

        def at(point: str) -> None:
            if due[0] > 2:  # some steps between one and the next
                met = len(points.met)
                points.at(worker, point)
                due[0] *= len(points.met) == met

        model = _Counting(at)
        buckets = ps.BucketOptions(bucket_bytes=8192, first_bucket_bytes=4096, partition_bytes=4096)
        optimizer = worker.wrap(
            torch.optim.SGD(model.parameters(), lr=1.0), model, overlap=overlap, buckets=buckets
        )
        loader = worker.loader(range(SAMPLES), batch_size=2)
        for number, samples in enumerate(batch for _ in worker.epochs(EPOCHS) for batch in loader):
            incarnation = link_of(worker).incarnation
            if not number % batches or incarnation != begun:
                batch.zero_()
                begun = incarnation
            batch[samples] += 1
            at("batch")
            loss = model(samples)
            at("forward done")
            with optimizer.no_sync() if (number + 1) % batches else torch.enable_grad():
                loss.backward()
            at("backward done")
            if (number + 1) % batches:
                continue
            optimizer.step()
            batch.zero_()
            at("step done")
            optimizer.zero_grad()
            at("cleared")
            due[0] += 1
            if number % 3 == 0:
                with torch.no_grad():
                    model(torch.zeros(1, dtype=torch.int64))
                    at("evaluation")
        worker.finish()
        unused = [use.unused for use in worker.stats().epochs if use.over]
        return model.seen.weight[0].detach().clone(), batch, sum(unused)

    ((weights, batch, unused),) = run_workers(one_shard, body, job=job)
    assert points.met == list(POINTS)
    assert (weights + batch).eq(EPOCHS).all()
    assert float(batch.sum()) == unused
