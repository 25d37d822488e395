"""Loaders of workers that come and go: an epoch is dealt to those who are there when it begins."""

from __future__ import annotations

import threading

import pytest
import torch

import ps_worker as ps

from .loaders import Stream
from .service import fresh_name, together

LIMIT_S = 20.0


def table_of(worker: ps.Worker) -> ps.Table:
    return worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))


def samples(loader: ps.Loader) -> list[int]:
    return [sample for batch in loader for sample in batch.tolist()]


@pytest.mark.parametrize("dataset", [range(50), Stream(50)], ids=["map", "stream"])
def test_every_sample_comes_once_in_each_epoch_whoever_is_there(one_shard, dataset):
    """One leaves after the first epoch; another comes during the second, and has a part of the third."""
    job = fresh_name()
    first, gone, came, dealt = threading.Barrier(2), *(threading.Event() for _ in range(3))

    def join(rank):
        return ps.connect(servers=one_shard.servers, job=job, num_workers=2, worker=rank, consistency="asp")

    def table_of(worker):
        import torch  # noqa: PLC0415

        return worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))

    def stays():
        with join(0) as worker:
            table_of(worker)
            loader = worker.loader(dataset, batch_size=4)
            found = [samples(loader)]
            first.wait(LIMIT_S)
            assert gone.wait(LIMIT_S)
            found.append(samples(loader))
            dealt.set()
            assert came.wait(LIMIT_S)
            return [*found, samples(loader)]

    def leaves():
        with join(1) as worker:
            table_of(worker)
            found = samples(worker.loader(dataset, batch_size=4))
            first.wait(LIMIT_S)
        gone.set()
        return [found]

    def comes():
        assert dealt.wait(LIMIT_S)
        with join(1) as worker:
            table_of(worker)
            came.set()
            loader = worker.loader(dataset, batch_size=4)
            return [samples(loader) for _ in worker.epochs(3)]

    stayed, left, late = together([stays, leaves, comes])
    assert late[:2] == [[], []]
    for epoch, parts in enumerate(([stayed[0], left[0]], [stayed[1]], [stayed[2], late[2]])):
        start = 1000 * epoch if isinstance(dataset, Stream) else 0
        assert sorted(sample for part in parts for sample in part) == list(range(start, start + 50))
        assert all(parts)
