"""`bsp:backup=b` over real server processes: a straggler does not slow the others, and loses no state."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps

from .processes import LIMIT_S
from .servers import Servers
from .team import train

pytestmark = pytest.mark.integration

STEPS = 12
SPREAD = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)


def test_law_1_and_7_a_straggler_with_a_backup_worker_slows_nobody(cluster: Servers) -> None:
    """Two of three train on while one holds its gradient back; each step is the mean of one recorded set.

    Every gradient is one-hot at (worker, step), in two parameters on different shards, so that the weights
    are the record of the sets.
    """
    others_done = threading.Barrier(3)

    def body(worker: ps.Worker) -> tuple[dict[str, torch.Tensor], list[int], ps.Stats]:
        shapes = {"a": torch.zeros(3, 2 * STEPS), "b": torch.zeros(3, 2 * STEPS), "pad": torch.zeros(5000)}
        table = worker.table(shapes, optimizer=ps.SGD(lr=1.0), buckets=SPREAD)
        versions: list[int] = []
        for turn in range(STEPS if worker.rank < 2 else 3):
            mark = torch.zeros(3, 2 * STEPS)
            mark[worker.rank, table.step] = 1.0
            if worker.rank == 2 and turn == 0:
                others_done.wait(LIMIT_S)  # the others have pulled the weights of their last step by then
            table.push({"a": mark, "b": mark, "pad": torch.zeros(5000)})
            pulled = table.pull().result(LIMIT_S)
            assert pulled.spread == 0
            assert torch.equal(pulled.values["a"], pulled.values["b"])
            versions.append(pulled.version)
        if worker.rank < 2:
            others_done.wait(LIMIT_S)
        stats = worker.stats()
        worker.finish()
        return dict(table.pull().result(LIMIT_S).values), versions, stats

    outcomes = train(cluster, body, num_workers=3, consistency="bsp:backup=1")
    finals = [outcome[0] for outcome in outcomes]
    assert all(torch.equal(finals[0][name], final[name]) for final in finals for name in ("a", "b"))
    sums = finals[0]["a"].sum(0)
    steps = outcomes[2][1][-1]
    torch.testing.assert_close(sums[:steps], torch.full((steps,), -1.0))
    assert finals[0]["a"][2, 0] == 0.0  # its first gradient came too late
    assert outcomes[0][1] == list(range(1, STEPS + 1))
    assert outcomes[2][1][0] == STEPS  # it went on behind the newest step
    straggler = outcomes[2][2]
    assert straggler.missed == STEPS - 1
    assert straggler.dropped > 0
    assert outcomes[0][2].dropped == outcomes[0][2].missed == 0
