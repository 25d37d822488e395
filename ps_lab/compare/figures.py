"""The figures of a report, drawn with matplotlib, each with what a reader has to know of it.

A figure that a comparison cannot have is left out. Colours are those of Okabe and Ito 2008, which people who
see fewer colours can tell apart, and each model has a marker of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps_lab.compare.comparison import Arm, Comparison, Entry
from ps_lab.compare.laws import bound_on_tau
from ps_lab.compare.metrics import PARTS, Curve, RunFigures
from ps_lab.compare.results import Numbers, Recording
from ps_lab.compare.statistics import interval, ratio
from ps_lab.errors import LibraryMissing
from ps_lab.experiments.experiment import BASELINES, LEAST_SEEDS
from ps_wire.spec import consistency
from ps_wire.spec.consistency import SSP

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError:
    raise LibraryMissing(
        "to draw a report, matplotlib is needed and is not installed: "
        "pip install 'torch-parameter-server[compare]'"
    ) from None

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "ps-lab",  # else two reports of the same runs would differ
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREYS = ("#777777", "#AAAAAA")
MARKERS = "osD^vPX"
PART_COLOURS = {
    "compute": "#0072B2",
    "push": "#56B4E9",
    "gate": "#D55E00",
    "pull": "#E69F00",
    "other": "#CCCCCC",
}
BINS = 60
NEAR = 5  # times what lies beyond the target is shown of what lies before it
LANES_STEPS = 12  # in the window of the lanes
WAIT_PART = 0.15  # of a step: a wait at the gate that is longer is traced to who ended it


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One figure.

    Attributes:
        name: of its files.
        title: as a heading.
        caption: what is shown, and how to read it.
        figure: of matplotlib.
    """

    name: str
    title: str
    caption: str
    figure: Any


def pictures(comparison: Comparison) -> Iterator[Picture]:
    """All that the comparison has, in the order of the report; drawn one after the other."""
    with mpl.rc_context(STYLE):
        for draw in _EACH:
            yield from draw(comparison)


def _losses(comparison: Comparison) -> Iterator[Picture]:
    for profile in comparison.experiment.profiles:
        entries = _entries(comparison, profile.name)
        runs = [one for entry in entries for one in entry.best.figures if one.loss.values.size]
        if not runs:
            continue
        axes: list[tuple[str, Callable[[Curve], Numbers]]] = [("seconds", lambda curve: curve.time_s)]
        if any(one.samples for one in runs):
            axes.append(("samples", lambda curve: curve.samples))
        axes.append(("updates", lambda curve: curve.updates))
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        panels = figure.subplots(1, len(axes), sharey=True)
        for panel, (label, along) in zip(panels, axes, strict=True):
            for entry in entries:
                _band(panel, comparison, entry, along)
            panel.set_xlabel(label)
            panel.set_xlim(left=0)
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(lambda value, _place: f"{value:,g}")
        finite = np.concatenate(
            [one.loss.values[np.isfinite(one.loss.values)] for one in runs] or [np.empty(0)]
        )
        if finite.size and finite.min() > 0 and finite.max() / finite.min() > 5:
            panels[0].set_yscale("log")
        panels[0].set_ylabel("training loss")
        _legend(figure, panels[0])
        yield Picture(
            name=f"loss-{_file(profile.name)}",
            title=f"Training loss, {profile.name}",
            caption=f"{_setting(comparison)}, each model at its best learning rate. Lines are means over "
            "runs, from where all have begun, bands go from the smallest to the largest; who has ended "
            "counts with its last loss. One that diverged is a thin line that ends in a cross. By updates: "
            "one update of a synchronous model is made of all workers' gradients.",
            figure=figure,
        )


def _band(panel: Any, comparison: Comparison, entry: Entry, along: Callable[[Curve], Numbers]) -> None:
    look = _look(comparison, entry.model)
    good = [one.loss for one in entry.best.good if one.loss.values.size]
    if good:
        end = max(float(along(curve)[-1]) for curve in good)
        edges = np.linspace(0, end, BINS + 1)
        rows = np.array([_held(_binned(along(curve), curve.values, edges)) for curve in good])
        known = np.isfinite(rows).all(axis=0)
        middle = (edges[:-1] + edges[1:])[known] / 2
        rows = rows[:, known]
        panel.plot(
            middle,
            rows.mean(axis=0),
            label=entry.model,
            color=look.colour,
            linewidth=1.6,
            linestyle=look.line,
        )
        if len(good) > 1:
            low, high = rows.min(axis=0), rows.max(axis=0)
            panel.fill_between(middle, low, high, color=look.colour, alpha=0.15, linewidth=0)
    for place, one in enumerate(run for run in entry.best.figures if run.diverged and run.loss.values.size):
        curve = one.loss
        finite = np.isfinite(curve.values)
        until = int(np.argmin(finite)) if not finite.all() else finite.size
        label = entry.model if not good and place == 0 else None
        panel.plot(along(curve)[:until], curve.values[:until], color=look.colour, linewidth=0.6, label=label)
        if until:
            panel.plot(
                along(curve)[until - 1], curve.values[until - 1], "x", color=look.colour, markersize=8, mew=2
            )


def _binned(x: Numbers, values: Numbers, edges: Numbers) -> Numbers:
    """Mean of the values in each bin, NaN where there is none."""
    place = np.clip(np.searchsorted(edges, x, side="left") - 1, 0, len(edges) - 2)
    counts = np.bincount(place, minlength=len(edges) - 1)
    sums = np.bincount(place, weights=values, minlength=len(edges) - 1)
    means: Numbers = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return means


def _held(row: Numbers) -> Numbers:
    """Each value until the next one; what is before the first stays NaN."""
    newest = np.maximum.accumulate(np.where(np.isfinite(row), np.arange(row.size), -1))
    held: Numbers = np.where(newest >= 0, row[newest], np.nan)
    return held


def _qualities(comparison: Comparison) -> Iterator[Picture]:
    profiles = [
        profile.name
        for profile in comparison.experiment.profiles
        if any(one.evaluated for entry in _entries(comparison, profile.name) for one in entry.best.figures)
    ]
    if not profiles:
        return
    figure, panels = _panels(len(profiles), sharey=True)
    target = comparison.experiment.stop.target
    for panel, profile in zip(panels, profiles, strict=True):
        for entry in _entries(comparison, profile):
            look = _look(comparison, entry.model)
            for place, one in enumerate(run for run in entry.best.figures if run.evaluated):
                times, values = zip(*one.evaluated, strict=True)
                panel.plot(
                    times,
                    values,
                    color=look.colour,
                    marker=look.marker,
                    markersize=3,
                    linewidth=0.8,
                    alpha=0.7,
                    label=entry.model if place == 0 else None,
                )
        if target is not None:
            panel.axhline(target.value, color="black", linestyle="--", linewidth=0.8, label="target")
        panel.set_title(profile)
        panel.set_xlabel("seconds")
        panel.set_xlim(left=0)
    panels[0].set_ylabel(comparison.metric)
    cut = _near_target(panels, comparison)
    _legend(figure, *panels)
    yield Picture(
        name="quality",
        title=f"{comparison.metric} on held-out data",
        caption=f"{_setting(comparison)}, each model at its best learning rate, one line per run; a mark is "
        f"an evaluation.{' What is far from the target is cut off.' if cut else ''}",
        figure=figure,
    )


def _near_target(panels: Sequence[Any], comparison: Comparison) -> bool:
    """Shows what lies around the target, where most values are far from it; whether that cuts off some."""
    target = comparison.experiment.stop.target
    if target is None:
        return False
    low = min(panel.dataLim.intervaly[0] for panel in panels)
    high = max(panel.dataLim.intervaly[1] for panel in panels)
    beyond = high - target.value if target.larger_is_better else target.value - low
    if beyond <= 0 or NEAR * beyond >= high - low:
        return False
    if target.larger_is_better:
        panels[0].set_ylim(target.value - NEAR * beyond, high + beyond / 3)
    else:
        panels[0].set_ylim(low - beyond / 3, target.value + NEAR * beyond)
    return True


def _targets(comparison: Comparison) -> Iterator[Picture]:
    target = comparison.experiment.stop.target
    entries = [entry for entry in comparison.entries.values() if entry.workers == comparison.workers]
    if target is None or not any(entry.best.target_s for entry in entries):
        return
    profiles = [profile.name for profile in comparison.experiment.profiles]
    models = comparison.experiment.parties
    figure, panels = _panels(len(profiles), height=1.2 + 0.35 * len(models), sharex=True, sharey=True)
    for panel, profile in zip(panels, profiles, strict=True):
        for place, model in enumerate(models):
            arm = comparison.entries[model, profile, comparison.workers].best
            look = _look(comparison, model)
            times = list(arm.target_s.values())
            if times:
                panel.plot(times, [place - 0.2] * len(times), ".", color=look.colour, alpha=0.6, markersize=6)
                effect = ratio([(time, 1.0) for time in times])
                panel.errorbar(
                    effect.value,
                    place,
                    xerr=[[effect.value - effect.low], [effect.high - effect.value]],
                    fmt=look.marker,
                    color=look.colour,
                    capsize=3,
                )
            if len(times) < len(arm.seeds) or not arm.seeds:
                text = f"{len(times)} of {len(arm.seeds)} seeds reached it" if arm.seeds else "not run"
                panel.annotate(
                    text,
                    (0.98, place),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="bottom",
                    fontsize=7,
                    color="#a00000",
                )
        panel.set_title(profile)
        panel.set_xlabel(f"seconds to {target}")
        panel.set_yticks(range(len(models)), models)
        panel.set_ylim(len(models) - 0.5, -0.5)
    panels[0].set_xlim(left=0)  # shared: when all is drawn
    many = len(comparison.experiment.seeds) >= LEAST_SEEDS
    yield Picture(
        name="time-to-target",
        title=f"Time to {target}",
        caption=f"{_setting(comparison)}, each model at its best learning rate: geometric mean over seeds, "
        "with "
        + (
            "its 95 % interval (the range of the seeds where fewer than five reached it)"
            if many
            else "the range of the seeds (too few for an interval)"
        )
        + "; small dots are seeds. Where not all seeds reached it, the mean is of those that did.",
        figure=figure,
    )


def _staleness(comparison: Comparison) -> Iterator[Picture]:
    models = [
        model
        for model in comparison.experiment.parties
        if any(one.tau for entry in _of_model(comparison, model) for one in entry.best.figures)
    ]
    if not models:
        return
    figure, panels = _panels(len(models), sharey=True)
    profiles = [profile.name for profile in comparison.experiment.profiles]
    least = 1.0
    for panel, model in zip(panels, models, strict=True):
        largest = 0
        for place, profile in enumerate(profiles):
            best = comparison.entries[model, profile, comparison.workers].best
            taus = [one.column("tau") for one in best.figures if one.tau]
            values = np.concatenate(taus) if taus else np.empty(0)
            values = values[np.isfinite(values)].astype(np.int64)
            if not values.size:
                continue
            shares = np.bincount(values) / values.size
            largest = max(largest, len(shares) - 1)
            some = np.flatnonzero(shares)
            least = min(least, float(shares[some].min()))
            panel.plot(
                some,
                100 * shares[some],
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                linewidth=1,
                color=COLOURS[place % len(COLOURS)],
                label=profile,
            )
        bound = bound_on_tau(model, comparison.workers)
        if bound is not None:
            panel.axvline(bound, color="black", linestyle="--", linewidth=0.9)
            panel.annotate(
                f"bound {bound}",
                (bound, 0.97),
                xycoords=("data", "axes fraction"),
                xytext=(-3 if bound else 4, 0),
                textcoords="offset points",
                ha="right" if bound else "left",
                va="top",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        panel.set_xlim(-0.5, max(largest, bound or 0) + 1)
        panel.set_yscale("log")
        panel.set_title(model)
        panel.set_xlabel("tau (updates)")
    panels[0].set_ylim(50 * least, 200)  # of all panels: a limit of one of them would hold for all
    panels[0].set_ylabel("% of pushes (log scale)")
    _legend(figure, *panels)
    yield Picture(
        name="staleness",
        title="Version staleness",
        caption=f"{_setting(comparison)}: tau is how many updates happened between reading the weights and "
        "applying the gradient computed on them. The scale is logarithmic, so that rare "
        "pushes with a large tau are seen. The dashed line is the model's bound: (2s + 1)(N - 1) under "
        "ssp, 0 under bsp; asp has none.",
        figure=figure,
    )


def _splits(comparison: Comparison) -> Iterator[Picture]:
    profiles = [
        profile.name
        for profile in comparison.experiment.profiles
        if any(one.recorded for entry in _entries(comparison, profile.name) for one in entry.best.good)
    ]
    if not profiles:
        return
    models = comparison.experiment.parties
    figure, panels = _panels(len(profiles), height=1.2 + 0.35 * len(models), sharex=True, sharey=True)
    for panel, profile in zip(panels, profiles, strict=True):
        for place, model in enumerate(models):
            runs = comparison.entries[model, profile, comparison.workers].best.good
            steps = sum(one.time_s.size for one in runs)
            left = 0.0
            for part in PARTS:
                if steps:
                    width = 1000 * sum(one.time_split()[part] for one in runs) / steps
                    label = part if width > 0.005 * (left + width) else None
                    panel.barh(place, width, left=left, height=0.6, color=PART_COLOURS[part], label=label)
                    left += width
        panel.margins(x=0.05)
        panel.set_title(profile)
        panel.set_xlabel("ms per step")
        panel.set_yticks(range(len(models)), models)
        panel.set_ylim(len(models) - 0.5, -0.5)
        panel.grid(axis="y", visible=False)
    _legend(figure, *panels)
    yield Picture(
        name="time-split",
        title="Where a step's time goes",
        caption=f"{_setting(comparison)}, mean over all steps of all workers. Gate: waiting for other "
        "workers, as the servers measured it. Pull: waiting for weights without that. Other: the rest of the "
        "step.",
        figure=figure,
    )


def _lanes(comparison: Comparison) -> Iterator[Picture]:
    found: list[tuple[str, list[tuple[str, RunFigures]]]] = []
    for each in sorted(comparison.experiment.profiles, key=lambda profile: profile.quiet):
        first = [
            (entry.model, run)
            for entry in _entries(comparison, each.name)
            if (run := next((run for run in entry.best.figures if run.recorded), None)) is not None
        ]
        found += [(each.name, first)] if first else []
    if not found:
        return
    profile, shown = found[0]
    workers = max(len(one.workers) for _, one in shown)
    height = len(shown) * (0.9 + 0.25 * workers) + 0.6
    figure = Figure(figsize=(10, min(height, 40)), layout="constrained")
    rows = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1, 2))
    for (left, right), (model, one) in zip(rows, shown, strict=True):
        _lag(left, one)
        _lane(right, one)
        left.set_title(model, loc="left")
        left.set_ylabel("steps ahead")
    rows[-1][0].set_xlabel("seconds")
    rows[-1][1].set_xlabel("seconds (a part of the run)")
    _legend(figure, *(row[1] for row in rows))
    yield Picture(
        name="lanes",
        title=f"Clocks of the workers, {profile}",
        caption=f"The first run of each model, {_setting(comparison)}. Left: how many steps each worker was "
        "ahead of the slowest one, over the whole run. Right: what each worker, named in its colour, did in "
        "a part of it, with the clock of each step; a dotted line goes from the end of a long wait at the "
        "gate to the worker whose push ended it.",
        figure=figure,
    )


def _lag(panel: Any, one: RunFigures) -> None:
    """Clocks above the smallest, over the run."""
    start = one.start_unix_s or 0.0
    times = np.linspace(0, one.wall_s or 1.0, 200)
    rows = np.full((len(one.workers), times.size), np.nan)
    for recording in one.recorded:  # between two incarnations a worker has no clock
        end, clock = recording.ended_unix_s - start, recording.numbers("clock")
        there = (times >= recording.started_unix_s[0] - start) & (times < end[-1])
        reached = np.concatenate([clock[:1], clock + 1])
        rows[one.workers.index(recording.header.worker), there] = reached[np.searchsorted(end, times[there])]
    alive = np.isfinite(rows).any(axis=0)
    rows, times = rows[:, alive], times[alive]
    if times.size:
        ahead = rows - np.nanmin(rows, axis=0)
        for place, row in enumerate(ahead):
            panel.plot(times, row, color=COLOURS[place % len(COLOURS)], linewidth=0.9)
    panel.set_xlim(left=0)
    panel.set_ylim(0, max(1.5, panel.get_ylim()[1]))
    panel.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _lane(panel: Any, one: RunFigures) -> None:
    recorded = _last_incarnations(one)
    start = one.start_unix_s or 0.0
    step_s = float(np.median(np.concatenate([r.ended_unix_s - r.started_unix_s for r in recorded])))
    from_s = _amidst(one)
    to_s = from_s + LANES_STEPS * step_s
    pushed = [_pushed_s(recording) - start for recording in recorded]
    for place, recording in enumerate(recorded):
        begin = recording.started_unix_s - start
        parts = {part: recording.numbers(f"{part}_s") for part in PARTS[:-1]}
        inside = np.flatnonzero((begin + sum(parts.values()) > from_s) & (begin < to_s)).tolist()
        at = begin[inside]
        for part, durations in parts.items():
            bars = list(zip(at, durations[inside], strict=True))
            label = part if place == 0 else None
            panel.broken_barh(
                bars, (place - 0.4, 0.8), facecolors=PART_COLOURS[part], label=label, linewidth=0
            )
            at = at + durations[inside]
        for index in inside:
            _clock(panel, recording, index, begin[index], place, from_s, to_s)
            waited = parts["gate"][index]
            if waited > WAIT_PART * step_s:
                gate_end = pushed[place][index] + waited
                other = _who_ended(pushed, place, gate_end)
                if other is not None and from_s < gate_end < to_s:
                    panel.plot([gate_end, gate_end], [place, other], ":", color="black", linewidth=0.9)
                    panel.plot(gate_end, other, ".", color="black", markersize=4)
    panel.set_yticks(range(len(recorded)), [f"worker {r.header.worker}" for r in recorded])
    for place, label in enumerate(panel.get_yticklabels()):
        label.set_color(COLOURS[place % len(COLOURS)])
    panel.set_ylim(len(recorded) - 0.4, -0.6)
    panel.set_xlim(from_s, to_s)
    panel.grid(axis="y", visible=False)


def _amidst(one: RunFigures) -> float:
    """A moment at which all workers step, if there is one: some end long before others."""
    recorded = _last_incarnations(one)
    from_s = max(
        float(recording.started_unix_s[:2][-1]) for recording in recorded
    )  # not the first: it is long
    to_s = min(float(recording.ended_unix_s[-1]) for recording in recorded)
    if to_s <= from_s:
        return 0.4 * (one.wall_s or 0.0)
    return from_s + 0.4 * (to_s - from_s) - (one.start_unix_s or 0.0)


def _clock(
    panel: Any, recording: Recording, index: int, begin: float, place: int, from_s: float, to_s: float
) -> None:
    step = recording.steps[index]
    left, right = max(begin, from_s), min(begin + step.compute_s, to_s)
    if right - left > 0.03 * (to_s - from_s):
        panel.text(
            (left + right) / 2, place, str(step.clock), ha="center", va="center", fontsize=6, color="white"
        )


def _pushed_s(recording: Recording) -> Numbers:
    return recording.started_unix_s + recording.numbers("compute_s") + recording.numbers("push_s")


def _who_ended(pushed: Sequence[Numbers], place: int, moment: float) -> int | None:
    """Who pushed last before a gate opened: the one that it was closed for."""
    latest: tuple[float, int | None] = (-np.inf, None)
    for other, times in enumerate(pushed):
        before = times[times <= moment + 1e-3]
        if other != place and before.size and before[-1] > latest[0]:
            latest = (float(before[-1]), other)
    return latest[1]


def _last_incarnations(one: RunFigures) -> list[Recording]:
    by_worker = {recording.header.worker: recording for recording in one.recorded}
    return [by_worker[worker] for worker in sorted(by_worker)]


def _sweep(comparison: Comparison) -> Iterator[Picture]:
    bounds = {model: _bound(model) for model in comparison.experiment.models}
    steps = sorted((bound, model) for model, bound in bounds.items() if bound is not None)
    if len(steps) < 2:
        return
    ends = [[model] for model in ("bsp", "asp") if model in bounds]
    models = [
        *(ends[0] if "bsp" in bounds else []),
        *(m for _, m in steps),
        *(["asp"] if "asp" in bounds else []),
    ]
    measures: list[tuple[str, Callable[[Arm], dict[int, float]]]] = [
        ("samples per second", lambda arm: arm.samples_per_s),
        (f"{comparison.metric} at the end", lambda arm: arm.quality),
    ]
    figure, panels = _panels(2)
    profiles = [profile.name for profile in comparison.experiment.profiles]
    for panel, (label, measure) in zip(panels, measures, strict=True):
        for place, profile in enumerate(profiles):
            found = [
                (position, interval(list(values.values())))
                for position, model in enumerate(models)
                if (values := measure(comparison.entries[model, profile, comparison.workers].best))
            ]
            if found:
                _errors(panel, found, COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], profile)
        panel.set_xticks(range(len(models)), [model.removeprefix("ssp:") for model in models])
        panel.set_xlabel("s (bsp: a barrier, asp: no bound)")
        panel.set_ylabel(label)
    _legend(figure, *panels)
    yield Picture(
        name="sweep",
        title="The bound s",
        caption=f"{_setting(comparison)}, each model at its best learning rate: mean over seeds with "
        f"{_interval(comparison)}.",
        figure=figure,
    )


def _rates(comparison: Comparison) -> Iterator[Picture]:
    entries = [entry for entry in comparison.entries.values() if entry.workers == comparison.workers]
    if not any(len(entry.arms) > 1 and entry.best.figures for entry in entries):
        return
    profiles = [profile.name for profile in comparison.experiment.profiles]
    figure, panels = _panels(len(profiles), sharey=True)
    for panel, profile in zip(panels, profiles, strict=True):
        for place, entry in enumerate(_entries(comparison, profile)):
            look = _look(comparison, entry.model)
            found = [
                (arm.lr, interval(list(arm.quality.values())))
                for arm in entry.arms
                if arm.lr is not None and arm.quality
            ]
            if found:
                _errors(panel, found, look.colour, look.marker, entry.model)
            best = entry.best.quality
            if entry.best.lr is not None and best:
                height = interval(list(best.values()))[0]
                panel.plot(
                    entry.best.lr, height, "o", markersize=11, markerfacecolor="none", color=look.colour
                )
            for arm in entry.arms:
                if arm.diverged and arm.lr is not None:
                    panel.plot(
                        arm.lr,
                        abs((0.0 if comparison.larger_is_better else 1.0) - 0.03 - 0.05 * place),
                        "x",
                        transform=panel.get_xaxis_transform(),
                        color=look.colour,
                        markersize=7,
                        mew=2,
                    )
        panel.set_xscale("log")
        panel.set_title(profile)
        panel.set_xlabel("learning rate")
    panels[0].set_ylabel(f"{comparison.metric} at the end")
    _legend(figure, *panels)
    yield Picture(
        name="learning-rates",
        title="Learning rates",
        caption=f"{_setting(comparison)}: mean over seeds with {_interval(comparison)}. The ring is the "
        "rate at which the model is reported elsewhere: the one that reached the target soonest, else with "
        f"the best {comparison.metric}. A cross at the edge: runs at this rate diverged.",
        figure=figure,
    )


def _scaling(comparison: Comparison) -> Iterator[Picture]:
    counts = sorted(comparison.experiment.setup.workers)
    if len(counts) < 2:
        return
    profiles = [profile.name for profile in comparison.experiment.profiles]
    figure, panels = _panels(len(profiles), sharey=True)
    drawn = False
    for panel, profile in zip(panels, profiles, strict=True):
        for model in comparison.experiment.parties:
            look = _look(comparison, model)
            found = [
                (workers, interval(list(speeds.values())))
                for workers in counts
                if (speeds := comparison.entries[model, profile, workers].best.samples_per_s)
            ]
            if found:
                drawn = True
                _errors(panel, found, look.colour, look.marker, model)
            if model == comparison.experiment.reference and found:
                first, (speed, _, _) = found[0]
                ideal = [speed * workers / first for workers in counts]
                panel.plot(counts, ideal, "--", color="black", linewidth=0.8, label="ideal")
        panel.set_title(profile)
        panel.set_xlabel("workers")
        panel.set_xticks(counts)
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("samples per second")
    _legend(figure, *panels)
    if drawn:
        yield Picture(
            name="scaling",
            title="More workers",
            caption=f"Mean over seeds with {_interval(comparison)}. The dashed line is "
            f"{comparison.experiment.reference} with the fewest workers, times the number of workers.",
            figure=figure,
        )


_EACH: tuple[Callable[[Comparison], Iterator[Picture]], ...] = (
    _targets,
    _losses,
    _qualities,
    _staleness,
    _splits,
    _lanes,
    _sweep,
    _rates,
    _scaling,
)


@dataclass(frozen=True, slots=True)
class Look:
    """Of one model, the same in all figures."""

    colour: str
    marker: str
    line: str = "-"


def _look(comparison: Comparison, model: str) -> Look:
    experiment = comparison.experiment
    place = experiment.parties.index(model)
    if model in BASELINES:
        return Look(GREYS[place % len(GREYS)], MARKERS[-1 - place], "--")
    own = experiment.models.index(model)
    return Look(COLOURS[own % len(COLOURS)], MARKERS[own % len(MARKERS)])


def _panels(count: int, *, height: float = 3.0, **shared: bool) -> tuple[Any, list[Any]]:
    """A figure with so many panels, up to three in a row."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(4.5, 3.4 * columns), height * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for panel in panels[count:]:
        panel.remove()
    for panel in panels[:count]:  # also where an axis is shared with one below: each says what its axis is
        panel.tick_params(labelbottom=True)
    return figure, panels[:count]


def _legend(figure: Any, *panels: Any) -> None:
    """One legend below all panels."""
    found: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=min(8, len(found)))


def _errors(
    panel: Any,
    found: Sequence[tuple[float, tuple[float, float, float]]],
    colour: str,
    marker: str,
    label: str,
) -> None:
    places = [place for place, _ in found]
    means = np.array([mean for _, (mean, _, _) in found])
    low = means - [low for _, (_, low, _) in found]
    high = np.array([high for _, (_, _, high) in found]) - means
    panel.errorbar(
        places,
        means,
        yerr=np.maximum(0.0, [low, high]),
        color=colour,
        marker=marker,
        markersize=4,
        linewidth=1.2,
        capsize=3,
        label=label,
    )


def _entries(comparison: Comparison, profile: str) -> list[Entry]:
    return [comparison.entries[model, profile, comparison.workers] for model in comparison.experiment.parties]


def _of_model(comparison: Comparison, model: str) -> list[Entry]:
    return [
        comparison.entries[model, profile.name, comparison.workers]
        for profile in comparison.experiment.profiles
    ]


def _bound(model: str) -> int | None:
    parsed = consistency.parse(model)
    return parsed.staleness if isinstance(parsed, SSP) else None


def _setting(comparison: Comparison) -> str:
    workers = comparison.workers
    return "1 worker" if workers == 1 else f"{workers} workers"


def _interval(comparison: Comparison) -> str:
    if len(comparison.experiment.seeds) < LEAST_SEEDS:
        return "the range of the seeds"
    return "95 % intervals (the range of the seeds where fewer than five have a value)"


def _file(name: str) -> str:
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name
    )
