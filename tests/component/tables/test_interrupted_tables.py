"""Ctrl-C in a call of a table: the next call goes on, and a step is taken whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import ps_worker as ps
from tests.component.interrupting import interrupted_at
from tests.component.service import LIMIT_S, Cluster, run_workers

EACH = ps.BucketOptions(bucket_bytes=1, first_bucket_bytes=1)  # two partitions: Ctrl-C may come between
STRIDE = 2  # of the lines that one test interrupts


def start() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(5), "v": torch.zeros(3, 2)}


def all_of(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(zeros, value) for name, zeros in start().items()}


def made(worker: ps.Worker) -> Any:
    return worker.table(start(), optimizer=ps.SGD(lr=1.0), buckets=EACH)


def weights(table: Any) -> Mapping[str, torch.Tensor]:
    values: Mapping[str, torch.Tensor] = table.pull().result(LIMIT_S).values
    return values


@pytest.mark.parametrize(
    ("consistency", "carrier", "first"), [("bsp", "auto", 0), ("asp", "tcp", 1), ("ssp:1", "grpc", 0)]
)
def test_wherever_ctrl_c_lands_in_push_pull_or_abstain_the_next_push_counts(
    cluster: Cluster, consistency: str, carrier: str, first: int
):
    """Over one run, each time some lines later; what a broken push brought counts by partition, once."""

    def body(worker: ps.Worker) -> int:
        table = made(worker)
        calls: list[Callable[[], Any]] = [
            lambda: table.push(all_of(1.0)),
            table.pull,
            table.abstain,
        ]
        interrupted, line = True, first
        while interrupted:
            interrupted = False
            for pushed, call in zip((1.0, 0.0, 0.0), calls, strict=True):
                before = weights(table)
                interrupted |= interrupted_at(line, lambda call=call: call().result(LIMIT_S))
                table.push(all_of(100.0)).result(LIMIT_S)
                for name, now in weights(table).items():
                    gone = (before[name] - now).unique().tolist()
                    assert gone in ([100.0], [100.0 + pushed])
            line += STRIDE
        worker.finish()
        return line

    (lines,) = run_workers(cluster, body, consistency=consistency, carrier=carrier)
    assert lines > 200


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("inside", ["note", "send"])
def test_a_push_that_was_broken_off_holds_up_no_finish_and_no_leave(
    cluster: Cluster, inside: str, finishes: bool
):
    """After one of two partitions was noted, or both, and nothing was sent: their step is ended."""

    def body(worker: ps.Worker) -> set[float]:
        table = made(worker)
        number = 9 if inside == "note" else 0
        assert interrupted_at(number, lambda: table.push(all_of(1.0)), inside=inside)
        if not finishes:
            return set()
        worker.finish()
        return {float(it) for values in weights(table).values() for it in values.flatten()}

    (found,) = run_workers(cluster, body)
    assert found == (set() if not finishes else {-1.0} if inside == "send" else {0.0, -1.0})


def test_a_step_that_was_broken_off_is_the_one_that_others_ask_for(cluster: Cluster):
    """In a call that all make: who is behind takes a step without a push, and no second one."""

    def body(worker: ps.Worker) -> list[int]:
        table, steps = made(worker), []
        for inside in ("send", "note"):  # all of it noted; nothing of it
            number = 0 if inside == "send" else 1
            assert interrupted_at(number, lambda: table.push(all_of(1.0)), inside=inside)
            table.sit_out(again=False)
            steps.append(table.step)
        table.push(all_of(1.0)).result(LIMIT_S)
        worker.finish()
        return steps

    assert run_workers(cluster, body) == [[1, 2]]
