"""Overlays that run: processes in networks of their own, with the environment of the rendered pods."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults import links

from .cluster import refusal
from .manifests import ROOT
from .scenarios import SCENARIOS

pytestmark = [pytest.mark.integration, pytest.mark.fault]

PODS = ("moved", "rescheduled", "restarted", "vanished")
COMPOSE = ("compose",)
VARIANTS = tuple(name for name in SCENARIOS if name not in (*PODS, *COMPOSE))


@pytest.mark.parametrize("names", [PODS, VARIANTS, COMPOSE], ids=["pods", "variants", "compose"])
def test_the_overlays_train_and_end_with_the_right_bytes_whatever_becomes_of_their_pods(
    names: tuple[str, ...],
):
    """`tests/deploy/scenarios.py` has what happens in each."""
    if reason := refusal():
        pytest.skip(reason)
    ended = subprocess.run(
        [*links.UNSHARE, sys.executable, "-m", "tests.deploy.scenarios", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name in names:
        assert f"{name}: held" in ended.stdout
