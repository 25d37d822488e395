"""Ctrl-C while servers are dead: a worker leaves without a wait for what does not come."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_worker.exchange import in_flight
from ps_worker.process import stopping
from ps_worker.process.farewell import LOST_LIMIT_S
from tests.component.service import Cluster, fresh_name
from tests.inside import arrival_of

SMALL = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)


def _asked_by_us() -> bool:
    """Not where gRPC takes a call back that it has ended, or a thread of its own starts."""
    callers = [frame.filename for frame in traceback.extract_stack(limit=12)]
    asking = [name for name in callers if name not in (__file__, threading.__file__)][-1]
    return Path(ps.__file__).parent in Path(asking).parents


class Waits:
    """The limits of all waits of the worker on this thread, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits_s: list[float | None] = []
        self._thread = threading.get_ident()
        for owner, name in ((threading.Condition, "wait"), (threading.Thread, "join")):
            monkeypatch.setattr(owner, name, self._noting(getattr(owner, name)))

    def _noting(self, wait: Any) -> Any:
        def noted(waiter: object, timeout: float | None = None) -> Any:
            if threading.get_ident() == self._thread and _asked_by_us():
                self.limits_s.append(timeout)
            return wait(waiter, timeout)

        return noted


@pytest.mark.parametrize("dead", [[1], [1, 0]], ids=["a shard", "all servers"])
@pytest.mark.parametrize("block", [True, False], ids=["in a block", "at the end of the process"])
def test_after_ctrl_c_nothing_is_waited_for_long_that_does_not_come(
    durable: Cluster, monkeypatch: pytest.MonkeyPatch, dead: list[int], block: bool
) -> None:
    """In the middle of a step, whose pushes are not acknowledged and whose weights are not here."""
    monkeypatch.setattr(in_flight, "REPORT_WAIT_S", 0.1)

    killed: list[int] = []

    def presses(_text: str, _workers: str) -> None:
        if killed:  # else a first step is slow
            raise KeyboardInterrupt

    worker = ps.connect(servers=durable.servers, job=fresh_name())
    model = torch.nn.Linear(64, 64)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, buckets=SMALL)
    arrival_of(optimizer)._report = presses
    waits = None
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - as a script that is interrupted
            for step in range(5):
                model(torch.ones(4, 64)).sum().backward()
                if step == 1:
                    for shard in dead:
                        durable.kill(shard)
                        killed.append(shard)
                optimizer.step()
        waits = Waits(monkeypatch)
        if block:
            worker.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        else:
            monkeypatch.setattr(stopping, "_interrupted", True)
            worker.leave()
        monkeypatch.undo()
        assert waits.limits_s
        assert [it for it in waits.limits_s if it is None or it > LOST_LIMIT_S] == []
    finally:
        monkeypatch.undo()
        worker.leave()
        for shard in reversed(dead):  # then the servers end at once
            durable.start_again(shard)
