"""docs/api.md is what the docstrings generate, and holds all that a script may call."""

from __future__ import annotations

import importlib.util
import inspect
import re
from types import ModuleType

import pytest
import torch

import ps_worker as ps

from .pages import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()


@pytest.fixture(scope="module", name="generator")
def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_api", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_page_has_not_drifted(generator):
    """Generated again, it is the committed one."""
    assert generator.generate() == PAGE, "run `make api`"


@pytest.mark.parametrize("name", ps.__all__)
def test_every_public_name_is_on_the_page(generator, name):
    """Classes with their methods and properties, but for those of torch and those for other files of ours."""
    value = getattr(ps, name)
    assert PAGE.count(f"\n### `{name}`\n") == 1
    if inspect.isclass(value) and not issubclass(value, Exception):
        foreign = set(dir(torch.optim.Optimizer if issubclass(value, torch.optim.Optimizer) else object))
        own = {member for cls in value.__mro__ if cls.__module__.startswith("ps_") for member in vars(cls)}
        called = {
            member
            for member in own
            if not member.startswith("_")
            and (callable(getattr(value, member)) or isinstance(getattr(value, member), property))
        }
        inside = generator.INSIDE.get(name, set())
        assert inside <= called - foreign
        protocols = {member for member in called if re.match(r"See `Peer\.", getattr(value, member).__doc__)}
        for member in called - inside - protocols:
            assert PAGE.count(f"\n#### `{name}.{member}`\n") == 1, member
