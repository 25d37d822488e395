"""The table on a terminal: what runs have come to so far, row by row."""

import io
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ps_lab.compare.results import read_runs
from ps_lab.compare.scores import Scores

from .made import EXPERIMENT, World, made_folder, no_change


def rows(table: Table) -> dict[tuple[str, str], list[str]]:
    """Cells by model and profile, without these."""
    cells = [list(column.cells) for column in table.columns]
    return {(model, profile): list(rest) for model, profile, *rest in zip(*cells, strict=True)}


def scores(path: Path, change=no_change, **given) -> Scores:
    folder = made_folder(path, EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0, 1]"), change, **given)
    planned = [one.run for one in folder.runs]
    return Scores(folder.experiment, planned, [one for one in read_runs(folder) if one.ended])


def test_each_model_has_a_row_with_what_its_runs_came_to(tmp_path: Path):
    found = rows(scores(tmp_path, only=lambda run: run.seed == 0).table())
    assert list(found) == [
        (model, name) for name in ("quiet", "transient") for model in ("bsp", "ssp:3", "asp")
    ]
    rate, runs, seconds, accuracy, samples, updates, tau, p99, largest, gate = found["bsp", "transient"]
    assert (rate, runs) == ("0.001", "1/2")
    assert float(seconds) > 1.0
    assert 0.9 < float(accuracy) < 1.0
    assert int(samples.replace(",", "")) > 10 * int(updates.replace(",", ""))
    assert (tau, p99, largest) == ("0.00", "0", "0")
    assert gate.endswith("%")
    assert found["asp", "quiet"][-1] == "0%"


def test_a_profile_alone_can_be_shown(tmp_path: Path):
    found = rows(scores(tmp_path).table("quiet"))
    assert {profile for _, profile in found} == {"quiet"}


def test_runs_that_failed_or_have_not_ended_leave_cells_empty(tmp_path: Path):
    def fails(run, world: World) -> None:
        world.fails = "worker 3 exited with code 1" if run.model == "asp" else ""

    table = scores(tmp_path, fails, only=lambda run: run.profile.name == "quiet").table()
    found = rows(table)
    assert found["asp", "quiet"][1:] == ["2/2, 2 failed", *[""] * 8]
    assert found["bsp", "transient"][1:] == ["0/2", *[""] * 8]
    console = Console(file=io.StringIO(), width=200)
    console.print(table)


def test_a_run_that_diverged_is_named_beside_its_count(tmp_path: Path):
    def diverges(run, world: World) -> None:
        world.nan_from = 20 if run.model == "asp" and run.seed == 1 else world.nan_from

    found = rows(scores(tmp_path, diverges).table("quiet"))
    assert found["asp", "quiet"][1] == "2/2, 1 diverged"
    assert found["bsp", "quiet"][1] == "2/2"
