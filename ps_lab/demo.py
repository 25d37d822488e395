"""The demo: the comparison of `examples/experiments/quick.toml`, with what it needs to be run here."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from pathlib import Path

from ps_lab.compare.comparison import Comparison
from ps_lab.compare.folder import Folder
from ps_lab.errors import DemoFailed
from ps_lab.experiments.experiment import read

EXPERIMENT = Path("examples", "experiments", "quick.toml")


def find_experiment() -> Path:
    """The experiment in the source tree.

    Raises:
        DemoFailed: there is no source tree here, or scikit-learn, which has the data, is not installed.
    """
    path = Path(__file__).resolve().parent.parent / EXPERIMENT
    if not path.is_file():
        raise DemoFailed(
            f"the demo runs {EXPERIMENT} of the source tree, and {path} does not exist: "
            "clone the repository and run `make demo` in it"
        )
    if importlib.util.find_spec("sklearn") is None:
        raise DemoFailed("the demo needs scikit-learn for its data: pip install 'scikit-learn>=1.4'")
    return path


def make_folder(experiment: Path, out: Path | None) -> Folder:
    """A new folder for the demo's runs.

    Args:
        experiment: that it shows.
        out: where; None: a folder here with the time in its name.

    Raises:
        DemoFailed: the folder has runs already.
        UsageError: it has other files.
    """
    found, text = read(experiment)
    where = Path(f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}") if out is None else out
    folder = Folder.make(where, found, text)
    if len(folder.missing()) < len(folder.runs):
        raise DemoFailed(f"{where} has runs of an earlier demo: take another folder")
    return folder


def check(folder: Folder) -> None:
    """Whether every model has reached the experiment's target, in the mean over seeds: the demo promises it.

    Raises:
        DemoFailed: one has not.
    """
    comparison = Comparison.read(folder)
    target = comparison.experiment.stop.target
    assert target is not None, "the demo's experiment has a target"
    low = []
    for entry in comparison.entries.values():
        qualities = entry.best.quality.values()
        mean = sum(qualities) / len(qualities) if qualities else float("nan")
        if not target.met(mean):
            low.append(f"{entry.model} ({entry.profile}) came to {mean:.4f}")
    if low:
        raise DemoFailed(f"the demo must reach {target}: {', '.join(low)}")
