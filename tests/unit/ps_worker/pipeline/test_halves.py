"""A backward is taken apart where both of torch's halves together are the whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ps_worker.pipeline.halves import can_be_halved


class Stage(nn.Module):
    """A way of the input, and what `kind` does beside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(4, 4), nn.Linear(4, 4), kind
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.second(self.first(x).tanh())
        match self.kind:
            case "beside":
                return y, self.shift.tanh()
            case "twice":
                return (self.second(y.tanh()),)
            case "in two places":
                return ((y * self.shift).tanh() * self.shift,)
            case "met":
                return y + self.shift.tanh(), x
        return (y,)


@pytest.mark.parametrize("feeds", [True, False])
@pytest.mark.parametrize(
    ("kind", "can"),
    [("", True), ("met", True), ("beside", False), ("twice", False), ("in two places", False)],
)
def test_a_backward_is_in_halves_where_no_weight_is_left_out(kind: str, can: bool, feeds: bool) -> None:
    """Where it is, torch's halves give what a backward gives."""
    torch.manual_seed(0)
    stage = Stage(kind)
    given = torch.randn(3, 4, requires_grad=feeds)
    outputs = stage(given)
    assert can_be_halved([given], outputs, last=False) == (can and feeds)
    if not (can and feeds):
        return

    upstream = [torch.randn_like(it) for it in outputs]
    torch.autograd.backward(outputs, upstream, retain_graph=True)
    whole = {name: it.grad for name, it in stage.named_parameters()}
    stage.zero_grad()
    given.grad = None
    _, groups = stage_backward_input(list(outputs), upstream, [given], stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
    for name, it in stage.named_parameters():
        assert (it.grad is None) == (whole[name] is None), name
        if it.grad is not None:
            torch.testing.assert_close(it.grad, whole[name])


def test_outputs_of_the_last_stage_meet_in_the_loss() -> None:
    given = torch.randn(3, 4, requires_grad=True)
    outputs = Stage("beside")(given)

    assert can_be_halved([given], outputs, last=True)
    assert not can_be_halved([given.detach()], outputs, last=True)
