"""A group over tcp: each rank asks for weights of what it owns while its backward is still running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from .groups import start_groups
from .processes import Start
from .servers import Servers

pytestmark = pytest.mark.integration

SCRIPT = str(Path(__file__).with_name("group_ahead_script.py"))
STEPS = 4


def expected(size: int) -> list[torch.Tensor]:
    """One process over the mean of what the ranks have, in their order."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(4)])
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01, fused=True)  # as the servers run it
    generators = [torch.Generator().manual_seed(rank) for rank in range(size)]
    for _ in range(STEPS):
        every = []
        for generator in generators:
            loss = model(torch.randn(8, 200, generator=generator)).square().mean()
            every.append(torch.autograd.grad(loss, parameters))
        for parameter, *parts in zip(parameters, *every, strict=True):
            parameter.grad = sum(parts[1:], start=parts[0]) / size
        optimizer.step()
    return [it.detach() for it in parameters]


def test_weights_of_last_layers_come_to_ranks_in_backward_which_reads_those_of_before_to_its_end(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    options = ("--carrier", "tcp", "--group-reduce", "gloo")
    script = (SCRIPT, str(tmp_path), str(STEPS))
    (ranks,) = start_groups(spawn, cluster, *script, groups=1, options=options)
    assert [rank.wait_end() for rank in ranks] == [0, 0], "\n".join(rank.text for rank in ranks)

    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert max(one["early"] for one in said) > 1
    for one in said:
        assert one["seen"] == [[int(one["early"] > 1), True]] * STEPS
        assert set(one["versions"]) == {STEPS}
    weights = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for *mine, wanted in zip(*weights, expected(2), strict=True):
        assert all(torch.equal(it, wanted) for it in mine)
