"""Ordinary training scripts, changed only in the lines marked `# ps`, against the same scripts in plain torch.

Under bsp the weights have the bytes of two replicas in one process that average their gradients in rank order,
whatever the script does. With a script whose gradient is a mean over samples (no BatchNorm, no clipping of each
worker's own gradient, no bfloat16 rounding of it) that is, within law 2, one process with twice the batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch

from .plain import Plain
from .processes import Zygote
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MNIST = ("mnist_like.py", "--epochs", "1", "--batch-size", "32")  # 22 steps
RESNET = ("resnet_ema.py", "--epochs", "1", "--batch-size", "32")  # 22 steps
GPT = ("gpt_amp.py", "--steps", "20", "--batch-size", "4", "--width", "32", "--context", "32")

Weights = dict[str, torch.Tensor]


def served(
    cluster: Servers, zygote: Zygote, folder: Path, command: Sequence[str], consistency: str = "bsp"
) -> tuple[Weights, str]:
    """What worker 0 of two processes saved, and printed last."""
    options = ("--servers", cluster.option, "--job", fresh_job(), "--num-workers", "2")
    script = (str(EXAMPLES / command[0]), *command[1:], "--save", str(folder / "served"))
    workers = [
        zygote.start("ps-worker", *options, "--consistency", consistency, "--worker", rank, *script)
        for rank in ("0", "1")
    ]
    assert [worker.wait_end() for worker in workers] == [0, 0], workers[0].text + workers[1].text
    return safetensors.torch.load_file(folder / "served"), workers[0].lines[-1]


def plain(
    cluster: Servers, folder: Path, command: Sequence[str], shares: Sequence[Sequence[int]]
) -> Weights:
    """What the script saves in plain torch, with a replica for each of `shares`."""
    Plain(cluster, shares).run(EXAMPLES / command[0], *command[1:], "--save", str(folder / "plain"))
    return safetensors.torch.load_file(folder / "plain")


def assert_same(got: Weights, expected: Weights) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def distance(got: Weights, expected: Weights) -> float:
    """Relative L2."""
    one, other = (torch.cat([weights[name].flatten() for name in expected]) for weights in (got, expected))
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(
    "command",
    [MNIST, RESNET, GPT, (*GPT, "--compile", "aot_eager")],
    ids=["mnist", "resnet", "gpt", "gpt compiled"],
)
def test_under_bsp_a_script_gives_the_bytes_of_plain_replicas(
    cluster: Servers, zygote: Zygote, tmp_path: Path, command: Sequence[str]
) -> None:
    """Schedules, clipping, autocast, a GradScaler, accumulation, BatchNorm's statistics and the EMA included."""
    if "gpt" not in command[0]:
        pytest.importorskip("sklearn")
    got, _ = served(cluster, zygote, tmp_path, command)
    assert_same(got, plain(cluster, tmp_path, command, [[0], [1]]))


@pytest.mark.parametrize(
    "command",
    [(*MNIST, "--clip", "1e9"), (*GPT, "--dtype", "float32")],
    ids=["mnist", "gpt"],
)
def test_law_2_under_bsp_a_script_is_close_to_one_process_with_twice_the_batch(
    cluster: Servers, zygote: Zygote, tmp_path: Path, command: Sequence[str]
) -> None:
    got, _ = served(cluster, zygote, tmp_path, command)
    expected = plain(cluster, tmp_path, command, [[0, 1]])
    print("DISTANCE", distance(got, expected))
    assert 0 < distance(got, expected) <= 1e-5
