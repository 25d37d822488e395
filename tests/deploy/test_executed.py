"""Overlays that run: processes in networks of their own, with the environment of the rendered pods."""

from __future__ import annotations

import pytest

from tests.faults import apart
from tests.integration.processes import Start

from .cluster import refusal
from .scenarios import SCENARIOS

pytestmark = [pytest.mark.integration, pytest.mark.fault]

PODS = ("moved", "rescheduled", "restarted", "vanished")
COMPOSE = ("compose",)
VARIANTS = tuple(name for name in SCENARIOS if name not in (*PODS, *COMPOSE))


@pytest.mark.parametrize("names", [PODS, VARIANTS, COMPOSE], ids=["pods", "variants", "compose"])
def test_the_overlays_train_and_end_with_the_right_bytes_whatever_becomes_of_their_pods(
    spawn: Start, names: tuple[str, ...]
):
    """`tests/deploy/scenarios.py` has what happens in each."""
    if reason := refusal():
        pytest.skip(reason)
    scenarios = spawn(*apart.command("tests.deploy.scenarios", *names), **apart.ENVIRONMENT)
    assert scenarios.wait_end(400.0) == 0, scenarios.text
    for name in names:
        assert f"{name}: held" in scenarios.text
