"""Ranks reduce on GPUs where each has one of its own; all of them find the same, and say who has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_wire.errors import ConfigurationRefused
from ps_worker.group.devices import gpus
from ps_worker.group.group import NCCL, REDUCES
from ps_worker.group.hosts import Hosts
from tests.unit.ps_worker.group.wires import town


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [("", 2, ["0", "1"]), ("3, 5", 2, ["3", "5"]), ("GPU-ab", 1, ["GPU-ab"]), ("0,1,9", 2, ["0", "1"])],
)
def test_a_gpu_is_named_as_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch, visible: str, count: int, names: list[str]
) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)

    assert list(gpus.here({"CUDA_VISIBLE_DEVICES": visible})) == names


def test_without_nccl_no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)

    assert list(gpus.here({})) == []


@pytest.mark.parametrize(
    ("machines", "seen", "why"),
    [
        ("aa", (["0", "1"], ["0", "1"]), ""),
        ("aa", (["0"], ["1"]), ""),
        ("ab", (["0"], ["0"]), ""),
        ("aa", (["0"], ["0"]), "ranks 0, 1 are on one host, and see 1 GPUs"),
        ("ab", (["0"], []), "rank 1 sees no GPU"),
    ],
)
def test_each_rank_needs_a_gpu_of_its_own(machines: str, seen: Any, why: str) -> None:
    with town(2) as group:
        found = group.run(lambda rank: gpus.lacking(group.channels[rank], Hosts(machines), seen[rank]))

    assert found[0] == found[1]
    assert found[0].startswith(why)
    assert bool(found[0]) == bool(why)


@pytest.mark.parametrize(
    ("machines", "names", "why"),
    [
        ("aa", ("0", "1"), ""),
        ("ab", ("0", "0"), ""),
        ("aa", ("0", "0"), "ranks 0 and 1 have it on one GPU"),
        ("aa", ("0", None), "its parameters are not all on one GPU of rank 1"),
    ],
)
def test_a_table_is_reduced_on_gpus_where_it_is_on_another_one_of_each_rank(
    machines: str, names: Any, why: str
) -> None:
    with town(2) as group:
        found = group.run(lambda rank: gpus.shared(group.channels[rank], Hosts(machines), 0, names[rank]))

    assert found[0] == found[1]
    assert found[0].startswith(why)
    assert bool(found[0]) == bool(why)


def test_parameters_of_the_host_or_of_two_devices_are_on_no_gpu() -> None:
    assert gpus.of([torch.zeros(1)]) is None
    assert gpus.of([torch.zeros(1), torch.zeros(1, device="meta")]) is None


def test_nccl_that_is_asked_for_without_gpus_is_refused_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    with town(2) as group:
        found = group.run(lambda rank: REDUCES[NCCL](group.channels[rank], Hosts("aa")))

    assert [type(error) for error in found] == [ConfigurationRefused] * 2
    assert "--group-reduce nccl): rank 0 sees no GPU" in found[0].message
