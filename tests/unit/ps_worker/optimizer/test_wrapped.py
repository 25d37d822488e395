"""The class of wrapped optimizers, before there is one."""

from __future__ import annotations

import runpy
from typing import Any

import torch

from ps_worker.optimizer import wrapped


def test_the_step_calls_hooks_before_there_is_an_optimizer_and_torch_leaves_it_so():
    """Two threads that make their first ones at one time would both have torch do it."""
    fresh: Any = runpy.run_path(wrapped.__file__)["WrappedOptimizer"]
    step = fresh.step
    torch.optim.Optimizer.__setstate__(fresh.__new__(fresh), {"defaults": {}})  # as each instance is made
    assert fresh.step is step
