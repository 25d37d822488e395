"""The place of our hooks among those of a script."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from ps_worker.optimizer.module_hooks import ModuleHooks


def test_ours_are_first_in_both_orders_and_hooks_of_the_script_stay_as_they_are():
    """Torch runs them in that of the OrderedDict; dynamo of torch 2.11 names them by that of its dict."""
    model = torch.nn.Linear(3, 3)
    ran: list[str] = []
    handles = [
        model.register_forward_pre_hook(lambda *_: ran.append("script")),
        model.register_forward_pre_hook(lambda *_: ran.append("script before"), prepend=True),
    ]
    hooks: Any = model._forward_pre_hooks
    before = list(hooks.items())
    ours = ModuleHooks(model, enter=lambda _: ran.append("ours"), settle=lambda: None)

    ours.watch()
    model(torch.ones(3))
    ours.plan(list(model.parameters()))
    ours.put_on()
    assert isinstance(hooks, OrderedDict)
    assert list(hooks) == list(dict.keys(hooks))
    assert list(hooks)[1:] == [key for key, _ in before]
    ran.clear()
    model(torch.ones(3))
    assert ran == ["ours", "script before", "script"]

    ours.take_off()
    assert list(hooks.items()) == before
    for handle in handles:
        handle.remove()
    assert not hooks
