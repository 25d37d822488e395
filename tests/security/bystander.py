"""A job that trains beside those who mean harm: its weights must come out as if it had been alone."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

import ps_worker as ps
from tests.until import LIMIT_S

NUMEL = 3000
NUM_WORKERS = 2


def train(servers: str, job: str, steps: int, settings: Mapping[str, Any]) -> bytes:
    """Two workers of a bsp job push gradients that are drawn; the bytes of its weights at the end."""
    ended: dict[int, bytes | BaseException] = {}

    def work(number: int) -> None:
        try:
            ended[number] = _work(servers, job, number, steps, settings)
        except BaseException as error:  # noqa: BLE001 - raised again below
            ended[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in ended.values():
        if isinstance(outcome, BaseException):
            raise outcome
    first, second = (ended[number] for number in range(NUM_WORKERS))
    assert first == second
    assert isinstance(first, bytes)
    return first


def _work(servers: str, job: str, number: int, steps: int, settings: Mapping[str, Any]) -> bytes:
    draw = torch.Generator().manual_seed(number)
    with ps.connect(
        servers=servers, job=job, worker=number, num_workers=NUM_WORKERS, consistency="bsp", **settings
    ) as worker:
        table = worker.table({"w": torch.zeros(NUMEL)}, optimizer=ps.Adam(lr=0.1))
        for _ in range(steps):
            table.push({"w": torch.randn(NUMEL, generator=draw)}).result(LIMIT_S)
        weights: torch.Tensor = table.pull().result(LIMIT_S).values["w"]
        worker.finish()
        return weights.numpy().tobytes()
