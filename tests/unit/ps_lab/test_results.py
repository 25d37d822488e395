"""Recorded runs as a table of pandas."""

import importlib
import sys
from pathlib import Path

import pytest

from ps_lab.compare.results import read_runs
from ps_lab.errors import LibraryMissing
from ps_wire.errors import UsageError
from ps_worker.recording.columns import COLUMNS

from .compare.made import EXPERIMENT, World, made_folder

FEW = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0, 1]")


def test_without_a_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pandas is needed for the table alone, and matplotlib for the report alone."""
    for library, module in (("pandas", "ps_lab.results"), ("matplotlib", "ps_lab.compare.figures")):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(LibraryMissing, match=r"pip install 'torch-parameter-server\[compare\]'"):
            importlib.import_module(module)


def test_a_comparison_is_one_table_with_a_row_per_step(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the extra compare is not installed")
    from ps_lab import results  # noqa: PLC0415

    def change(run, world: World) -> None:
        world.extra = {"norm": 2.0} if run.model == "asp" else {}

    folder = made_folder(tmp_path / "out", FEW, change, only=lambda run: run.seed == 0)
    table = results.load(folder.path)
    assert len(table) == 6 * 4 * 60
    assert {column.name for column in COLUMNS} - {"metrics"} <= set(table.columns)
    taus = [step.tau for data in read_runs(folder) for one in data.recordings for step in one.steps]
    assert table["tau"].tolist() == taus
    assert table.groupby("model")["metrics.norm"].count().to_dict() == {"asp": 480, "bsp": 0, "ssp:3": 0}
    assert set(table["profile"]) == {"quiet", "transient"}
    assert (table["ended_unix_s"] >= table["started_unix_s"]).all()


def test_a_folder_of_records_alone_is_a_table_too(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="the extra compare is not installed")
    from ps_lab import results  # noqa: PLC0415

    folder = made_folder(tmp_path / "out", FEW, only=lambda run: run.seed == 0)
    table = results.load(str(folder.runs[0].records))
    assert len(table) == 240
    assert "run" not in table
    assert set(table["worker"]) == {0, 1, 2, 3}
    with pytest.raises(UsageError, match="no records"):
        results.load(tmp_path / "nothing")
    assert results.load(made_folder(tmp_path / "empty", FEW, only=lambda run: False).path).empty
