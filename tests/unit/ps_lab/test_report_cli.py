"""`ps-lab report`, and the experiments that come with the project."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ps_lab.cli import main
from ps_lab.experiments.experiment import read
from ps_lab.experiments.plan import runs
from tests.anew import run_anew

from .compare.made import EXPERIMENT, made_folder
from .compare.painting import unpainted

EXPERIMENTS = sorted((Path(__file__).resolve().parents[3] / "examples" / "experiments").glob("*.toml"))
FEW = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]")


def report(*words: str) -> subprocess.CompletedProcess[str]:
    return run_anew("-c", "from ps_lab.cli import main; main()", "report", *words)


def test_it_says_what_was_found_and_where_the_report_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra compare is not installed")
    folder = made_folder(tmp_path / "out", FEW)
    done = report(str(folder.path), "--against", str(folder.path))
    assert done.returncode == 0, done.stderr
    *sentences, page = done.stdout.splitlines()
    assert Path(page) == folder.path / "report" / "report.html"
    assert Path(page).is_file()
    assert any("ssp:3 reached accuracy >= 0.9 in" in line for line in sentences)
    assert any("bsp before" in line for line in sentences)


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """That of `ps-lab report` in this process, whose figures stay empty."""
    pytest.importorskip("matplotlib", reason="the extra compare is not installed")
    unpainted(monkeypatch, "svg", "png")
    monkeypatch.setattr(sys, "argv", ["ps-lab", "report", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_its_exit_code_says_that_runs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = made_folder(tmp_path / "out", FEW, only=lambda run: run.model == "bsp")
    assert exit_code(monkeypatch, str(folder.path)) == 1
    assert capfd.readouterr().out.splitlines()[-1].endswith("report.html")


def test_a_folder_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, str(tmp_path)) == 64
    assert "no folder of a comparison" in capfd.readouterr().err


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_experiments_can_be_read_and_their_scripts_take_what_they_are_given(path: Path) -> None:
    """Each begins with what it is, and every argument that a run gets is one of the script's."""
    experiment, text = read(path)
    assert text.startswith("# ")
    script = (path.parent / experiment.script).read_text()
    plan = runs(experiment)
    assert len(plan) >= len(experiment.parties) * len(experiment.seeds)
    given = {word for run in plan for word in run.arguments if word.startswith("--")}
    assert given <= set(re.findall(r'add_argument\("(--[\w-]+)"', script))
    assert {"--lr", "--seed"} <= given


def test_four_experiments_come_with_the_project() -> None:
    assert [path.stem for path in EXPERIMENTS] == ["char_lm", "learning_rates", "quick", "stragglers"]
