"""What is registered travels as JSON and tensors, and comes out as it went in."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_worker.model.registered import PREFIX, GroupsInForce, Registered, decode, encode


class Kept:
    """Has a state of any kind."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


STATES = [
    {"a": 1, "b": [1.5, None, True, "x"], 3: (1, (2.0,)), "nested": {"t": {}}},
    {"milestones": Counter({2: 1, 5: 1}), "inf": float("inf")},
    [],
]


@pytest.mark.parametrize("state", STATES)
def test_a_state_comes_out_as_it_went_in(state):
    """Types included: tuples, counters, keys that are numbers."""
    there, here = Registered(print), Registered(print)
    here.add("kept", kept := Kept(None))
    there.add("kept", Kept(state))
    here.load(there.tensors())
    assert kept.state == state
    assert repr(kept.state) == repr(state)


def test_tensors_travel_as_tensors():
    """Of any dtype; a registered tensor is written in place."""
    mine, theirs = torch.zeros(3), torch.arange(3.0)
    here, there = Registered(print), Registered(print)
    here.add("mine", mine)
    here.add("kept", kept := Kept(None))
    there.add("mine", theirs)
    there.add("kept", Kept({"a": torch.tensor(7), "b": [torch.ones(2, dtype=torch.bfloat16)]}))
    here.load(there.tensors())
    assert torch.equal(mine, theirs)
    assert int(kept.state["a"]) == 7
    assert kept.state["b"][0].dtype == torch.bfloat16


def test_what_is_registered_after_it_arrived_is_set_too():
    """A worker that joins registers its scheduler after wrap."""
    here, there = Registered(print), Registered(print)
    there.add("late", Kept({"epoch": 5}))
    here.load(there.tensors())
    kept = Kept({})
    here.add("late", kept)
    assert kept.state == {"epoch": 5}


def test_a_generator_keeps_its_own_state():
    """Two workers with one state would draw the same numbers."""
    mine, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    before = mine.get_state()
    here, there = Registered(print), Registered(print)
    here.add("rng", mine)
    there.add("rng", theirs)
    assert f"{PREFIX}rng" in there.tensors()
    here.load(there.tensors())
    assert torch.equal(mine.get_state(), before)


def test_what_cannot_travel_is_refused_or_said():
    """At registration; a state that changes its kind later is left out, with one line."""
    said: list[str] = []
    registered = Registered(said.append)
    for name, kept in (("x", object()), ("a/b", Kept({})), ("", Kept({})), ("f", Kept({"f": print}))):
        with pytest.raises(ps.UsageError, match="register_state"):
            registered.add(name, kept)
    registered.add("kept", kept := Kept({}))
    with pytest.raises(ps.UsageError, match="another object's name"):
        registered.add("kept", Kept({}))
    registered.add("kept", kept)
    kept.state = {"f": print}
    for _ in range(2):
        assert registered.tensors() == {}
    assert len(said) == 1


def test_param_groups_travel_without_parameters():
    """lr, betas and what a script has put there, as far as it can travel."""
    first, second = (torch.optim.Adam([torch.zeros(1)], lr=lr) for lr in (0.5, 0.1))
    first.param_groups[0] |= {"initial_lr": 0.7, "odd": object()}
    GroupsInForce(second).load_state_dict(decode(encode(GroupsInForce(first).state_dict(), []), None))
    assert second.param_groups[0]["lr"] == 0.5
    assert second.param_groups[0]["initial_lr"] == 0.7
    assert "odd" not in second.param_groups[0]
