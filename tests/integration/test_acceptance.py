"""Ordinary training scripts, changed only in the lines marked `# ps`, against the same in plain torch.

Under bsp the weights have the bytes of two replicas in one process that average their gradients in rank
order, whatever the script does. Where its gradient is a mean over samples (no BatchNorm, no clipping of each
worker's own gradient, no rounding of it to bfloat16) they are, by law 2, close to one process with twice the
batch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch

from .plain import Plain, imported
from .processes import Zygote
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MNIST = ("mnist_like.py", "--epochs", "1", "--batch-size", "32")  # 22 steps
RESNET = ("resnet_ema.py", "--epochs", "1", "--batch-size", "32")  # 22 steps
TINY = ("--width", "32", "--context", "32")
GPT = ("gpt_amp.py", *TINY, "--steps", "20", "--batch-size", "4")
UNIGRAM = 3.25  # nats per character, of who knows no more than how often each comes


Weights = dict[str, torch.Tensor]


def need(command: Sequence[str]) -> None:
    """What the examples on digits import."""
    if command[0] != "gpt_amp.py":
        pytest.importorskip("sklearn")


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


def plain(cluster: Servers, folder: Path, command: Sequence[str], shares: Sequence[Sequence[int]]) -> Weights:
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
    [(*MNIST, "--clip", "0.1"), RESNET, GPT, (*GPT, "--compile", "aot_eager")],
    ids=["mnist", "resnet", "gpt", "gpt compiled"],
)
def test_under_bsp_a_script_gives_the_bytes_of_plain_replicas(
    cluster: Servers, zygote: Zygote, tmp_path: Path, command: Sequence[str]
) -> None:
    """With clipping that is active, autocast, accumulation, BatchNorm's statistics and the moving average."""
    need(command)
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
    """Relative L2 of the weights <= 1e-5 after 20 steps or more, in which they went over 2,000 times as far.

    Adam keeps a gradient's relative error as it is, unless the gradient is nothing but rounding: then it
    moves the weight by lr in a random direction. The GPT has no such weight: no bias of its attention's keys,
    which softmax ignores; no row of its embedding without a gradient, since the output layer is the same
    matrix.
    """
    need(command)
    got, _ = served(cluster, zygote, tmp_path, command)
    one_process = [[0, 1]]
    expected = plain(cluster, tmp_path, command, one_process)
    start = plain(cluster, tmp_path, (*command, "--lr", "0"), one_process)
    assert distance(start, expected) > 0.02
    assert distance(got, expected) <= 1e-5


def test_alone_a_script_gives_the_bytes_of_plain_torch(
    cluster: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any `PS_*`, in this process, as under a debugger."""
    need(MNIST)
    monkeypatch.setattr(sys, "argv", [*MNIST, "--save", str(tmp_path / "alone")])
    imported(EXAMPLES / MNIST[0]).main()
    assert_same(safetensors.torch.load_file(tmp_path / "alone"), plain(cluster, tmp_path, MNIST, [[0]]))


@pytest.mark.parametrize("consistency", ["ssp:2", "asp"])
@pytest.mark.parametrize(
    ("command", "least"),
    [
        (("mnist_like.py", "--epochs", "2", "--batch-size", "16"), 0.6),
        (("resnet_ema.py", "--epochs", "2", "--decay", "0.8"), 0.8),
    ],
    ids=["mnist", "resnet"],
)
def test_a_script_learns_the_digits_without_a_barrier(
    cluster: Servers, zygote: Zygote, tmp_path: Path, command: Sequence[str], least: float, consistency: str
) -> None:
    """A decay of 0.95, as without the option, would leave a tenth of the average to the first of 44 steps."""
    need(command)
    _, line = served(cluster, zygote, tmp_path, command, consistency)
    accuracies = [float(text) for text in re.findall(r"[01]\.\d+", line)]
    assert accuracies
    assert min(accuracies) > least, line


@pytest.mark.parametrize("consistency", ["ssp:2", "asp"])
def test_a_script_learns_to_write_without_a_barrier(
    cluster: Servers, zygote: Zygote, tmp_path: Path, consistency: str
) -> None:
    command = ("gpt_amp.py", *TINY, "--steps", "120", "--lr", "0.01")
    _, line = served(cluster, zygote, tmp_path, command, consistency)
    loss = re.fullmatch(r"loss ([\d.]+)", line)
    assert loss is not None, line
    assert float(loss[1]) < UNIGRAM
