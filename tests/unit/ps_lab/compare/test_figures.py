"""Figures show all that was recorded."""

from pathlib import Path

import numpy as np
import pytest

from ps_lab.compare.results import read_recording

from .made import EXPERIMENT, World, made_folder

pytest.importorskip("matplotlib", reason="the extra compare is not installed")

from ps_lab.compare.comparison import Comparison
from ps_lab.compare.figures import pictures


def test_the_tail_of_tau_is_inside_its_panel(tmp_path: Path):
    """Panels share an axis: under bsp every push has a tau of 0, and its limits must not be those of all."""
    text = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]")
    comparison = Comparison.read(made_folder(tmp_path / "out", text))
    (figure,) = [one.figure for one in pictures(comparison) if one.name == "staleness"]
    seen = [float(share) for panel in figure.axes for line in panel.lines for share in line.get_ydata()[1:]]
    shares = [share for share in seen if share > 1.0 or 0.0 < share < 1.0]
    for panel in figure.axes:
        low, high = panel.get_ylim()
        assert low < min(shares) < 5.0
        assert high > 100.0


def test_lanes_show_a_part_of_the_run_in_which_all_workers_step(tmp_path: Path):
    """Under asp those that are ten times as fast end long before the slow one."""
    text = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]").replace(
        "transient:p=0.1,f=5", "constant:f=10,worker=3"
    )
    comparison = Comparison.read(made_folder(tmp_path / "out", text))
    (figure,) = [one.figure for one in pictures(comparison) if one.name == "lanes"]
    lanes = [
        panel
        for panel in figure.axes
        if [it.get_text() for it in panel.get_yticklabels()][:1] == ["worker 0"]
    ]
    assert len(lanes) == 3
    for panel in lanes:
        from_s, to_s = panel.get_xlim()
        bars = [path.get_extents() for drawn in panel.collections for path in drawn.get_paths()]
        places = {round((bar.y0 + bar.y1) / 2) for bar in bars if bar.x0 < to_s and bar.x1 > from_s}
        assert places == {0, 1, 2, 3}


def test_a_worker_that_came_again_is_where_it_was_and_not_at_its_beginning(tmp_path: Path):
    """How far workers are ahead, of one whose first process ended: between both it has no clock."""
    text = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]")
    folder = made_folder(tmp_path / "out", text[: text.rindex("[[profiles]]")])
    for run in folder.runs:
        (path,) = [it for it in run.records.iterdir() if read_recording(it).header.worker == 3]
        header, *steps = path.read_text().splitlines(keepends=True)
        path.write_text("".join([header, *steps[:20]]))
        second = header.replace('"incarnation":1', '"incarnation":2')
        assert second != header
        path.with_name("second.jsonl").write_text("".join([second, *steps[30:]]))
    (figure,) = [one.figure for one in pictures(Comparison.read(folder)) if one.name == "lanes"]
    panels = [panel for panel in figure.axes if panel.get_ylabel() == "steps ahead"]
    assert len(panels) == 3
    for panel in panels:
        ahead = np.array([line.get_ydata() for line in panel.lines])
        assert ahead.shape[0] == 4
        assert np.isnan(ahead[3]).any()
        assert np.nanmax(ahead) < 15, "it is 20 and more steps that the others had taken before"


def test_where_the_time_goes_is_not_of_runs_that_failed(tmp_path: Path):
    def change(run, world: World) -> None:
        if run.seed == 1:
            world.compute_s, world.fails = 2.0, "a worker ended"

    comparison = Comparison.read(made_folder(tmp_path / "out", EXPERIMENT, change))
    (figure,) = [one.figure for one in pictures(comparison) if one.name == "time-split"]
    ends = [bar.get_x() + bar.get_width() for panel in figure.axes for bar in panel.patches]
    assert 20 < max(ends) < 200, "milliseconds of a step"


def test_a_mean_of_runs_does_not_change_when_one_of_them_ends(tmp_path: Path):
    """One seed runs ten times as long as the other: what is left of it is no mean of both."""

    def change(run, world: World) -> None:
        world.compute_s = 0.2 if run.seed == 1 else 0.02

    text = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0, 1]")
    comparison = Comparison.read(made_folder(tmp_path / "out", text, change))
    (figure,) = [one.figure for one in pictures(comparison) if one.name == "loss-quiet"]
    (mean,) = [line for line in figure.axes[0].lines if line.get_label() == "bsp"]
    values = mean.get_ydata()
    assert values[-1] < 0.7 * values[0]
    assert (values[1:] < 1.3 * values[:-1]).all()


def test_every_panel_has_the_numbers_of_its_axis(tmp_path: Path):
    """Four profiles stand in two rows: the first three share their axis with what may not be below them."""
    more = '[[profiles]]\nname = "third"\n[[profiles]]\nname = "fourth"\n'
    text = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]") + more
    comparison = Comparison.read(made_folder(tmp_path / "out", text))
    found = {one.name: one.figure for one in pictures(comparison)}
    for name in ("time-to-target", "time-split"):
        shown = [panel.xaxis.get_tick_params()["labelbottom"] for panel in found[name].axes]
        assert shown == [True] * 4
