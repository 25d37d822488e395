"""Simulated runs beside measured ones: how near they came, and what is an extrapolation."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ps_lab.compare.comparison import Comparison
from ps_lab.compare.folder import Folder
from ps_lab.compare.tables import validation
from ps_lab.compare.validation import validated

from .made import EXPERIMENT, FACTS, World, made_folder

FEW = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0, 1]")
SIMULATED = replace(FACTS, versions=FACTS.versions | {"simulated": "in virtual time"})


def quicker(_run: object, world: World) -> None:
    world.compute_s = 0.005


def rows(simulated: Folder, measured: Folder) -> dict[tuple[object, object], dict[str, object]]:
    table = validation(validated(Comparison.read(simulated), Comparison.read(measured)))
    return {(row[0], row[1]): dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_the_same_runs_hold_and_what_was_not_measured_is_an_extrapolation(tmp_path: Path):
    measured = made_folder(tmp_path / "real", FEW, only=lambda run: run.profile.name == "quiet")
    found = rows(made_folder(tmp_path / "same", FEW, facts=SIMULATED), measured)
    assert len(found) == 6
    for model in ("bsp", "ssp:3", "asp"):
        row = found[model, "quiet"]
        assert (row["seeds"], row["low"], row["high"], row["simulation"]) == (2, 1.0, 1.0, "holds")
        assert row["tau: Wasserstein (updates)"] == row["tau: total variation"] == 0.0
        assert found[model, "transient"]["simulation"] == "extrapolation"
        assert found[model, "transient"]["throughput"] is None


def test_one_that_is_twice_as_fast_does_not_hold(tmp_path: Path):
    measured = made_folder(tmp_path / "real", FEW, only=lambda run: run.profile.name == "quiet")
    found = rows(made_folder(tmp_path / "quick", FEW, quicker, facts=SIMULATED), measured)
    for model in ("bsp", "ssp:3", "asp"):
        assert found[model, "quiet"]["throughput"] > 1.5
        assert found[model, "quiet"]["simulation"] == "does not hold"


def test_the_ratio_is_of_steps_whatever_a_batch_is_said_to_be(tmp_path: Path):
    """A simulation does not know the batches of the script."""
    measured = made_folder(tmp_path / "real", FEW, only=lambda run: run.profile.name == "quiet")
    simulated = made_folder(tmp_path / "same", FEW, facts=SIMULATED)
    for path in simulated.path.glob("runs/*/records/*.jsonl"):
        path.write_text(path.read_text().replace('"samples":16', '"samples":64'))
    assert rows(simulated, measured)["asp", "quiet"]["throughput"] == pytest.approx(1.0)


def test_a_first_step_that_imports_and_compiles_is_in_no_throughput(tmp_path: Path):
    """A simulation has none; three seconds of a run of a few would be all of the difference."""
    measured = made_folder(tmp_path / "real", FEW, only=lambda run: run.profile.name == "quiet")
    simulated = made_folder(tmp_path / "same", FEW, facts=SIMULATED)
    for path in measured.path.glob("runs/*/records/*.jsonl"):
        header, *steps = map(json.loads, path.read_text().splitlines())
        for step in steps:
            step["started_s"] += 3.0 * (step["step"] > 0)
            step["ended_s"] += 3.0
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, *steps)))
    assert rows(simulated, measured)["asp", "quiet"]["throughput"] == pytest.approx(1.0)
