"""The report of a comparison: one HTML file that needs no network; figures, tables and a summary beside it.

    DIR/report/report.html      everything, figures inside
    DIR/report/summary.md       findings and limits, as text
    DIR/report/figures/         each figure as SVG and PNG
    DIR/report/tables/          each table as CSV

It knows how a page looks, not how a figure is drawn or a number computed. What comes from a file or a script
is escaped.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from ps_lab.compare import limits, tables
from ps_lab.compare.comparison import Comparison
from ps_lab.compare.facts import Facts
from ps_lab.compare.figures import Picture, pictures
from ps_lab.compare.folder import REPORT, Folder, write_text
from ps_lab.compare.laws import verdicts
from ps_lab.compare.sentences import SPEED, TARGET, Finding, findings, in_short
from ps_lab.compare.tables import Table, Value
from ps_lab.compare.validation import validated
from ps_lab.outputs import written

PAGE = "report.html"
SUMMARY = "summary.md"
DPI = 150
LONG_TABLE = 30  # rows: longer ones are folded in the page
MAX_ROWS = 2000  # of a table in the page; its CSV has all

WORDS = (
    (
        "model",
        (
            "bsp: all workers wait for each other in every step. ssp:S: the fastest may be S steps ahead. "
            "asp: nobody waits. bsp:backup=B: a step does not wait for the B slowest. none and ddp run "
            "without servers."
        ),
    ),
    ("profile", "how the runs were disturbed: slow workers, pauses, crashes, slow links."),
    ("tau", "version staleness of a push: updates between reading the weights and applying the gradient."),
    ("gap", "clock gap: how many steps a worker was ahead of the slowest one."),
    ("gate", "where a worker waits until the others have come far enough."),
    (
        "update",
        (
            "one step of the optimizer on the servers: under bsp of all workers' mean gradient, under ssp "
            "and asp of a single one."
        ),
    ),
)
STATISTICS = (
    "Runs are paired by seed. Ratios are computed on logarithms, with the interval of the paired t test "
    "(Student 1908), and p-values are adjusted together for all sentences of this report (Holm 1979): a "
    "difference is called found where the adjusted p is below 0.05. With fewer than five seeds nothing is "
    "tested, and what stands in parentheses is the range over seeds."
)
_CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:64rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.7rem;margin-bottom:0}h2{font-size:1.25rem;margin-top:2.2rem;border-bottom:1px solid #ccc}
h3{font-size:1.05rem;margin-bottom:.3rem}p.note,figcaption,caption{color:#555;font-size:.9rem;text-align:left}
figure{margin:1.2rem 0}figure img{max-width:100%;height:auto}
div.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}
th:first-child,td:first-child,td.text,th.text{text-align:left}td.text{white-space:normal}
li.found{font-weight:600}li{margin:.25rem 0}.bad{color:#a00000;font-weight:600}
dt{font-weight:600}dd{margin-left:1.2rem}summary{cursor:pointer}
"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of a comparison that was written.

    Attributes:
        page: the HTML file.
        short: who was first under each profile, and how sure that is.
        findings: its sentences.
        limits: what the comparison cannot show.
        violated: laws that did not hold, each in a sentence.
        complete: all runs have ended as they should.
    """

    page: Path
    short: tuple[str, ...]
    findings: tuple[Finding, ...]
    limits: tuple[str, ...]
    violated: tuple[str, ...]
    complete: bool


def make(path: Path, against: Path | None = None) -> Report:
    """Makes the report of a folder, in the folder; what an earlier one left is replaced.

    Args:
        path: of the comparison; runs that have not ended are said to be missing.
        against: folder of another comparison, with which each model is compared, by the target and metric
            of this one.

    Raises:
        UsageError: a folder is none of a comparison, or a file in it is damaged.
        LibraryMissing: matplotlib is not installed.
        OutputFailed: it cannot be written.
    """
    comparison = Comparison.read(Folder.open(path))
    older = None if against is None else Comparison.read(Folder.open(against), like=comparison)
    found = findings(comparison, older)
    short = in_short(comparison, found)
    cannot = limits.sentences(comparison)
    checked = [(one, verdicts(one.data)) for one in comparison.figures]
    law_table, law_summary = tables.laws(checked), tables.law_summary(checked)
    violated = tuple(f"law {row[2]} in {row[0]}: {row[5]}" for row in law_table.rows if row[3] == "violated")
    brief = [tables.summary(comparison)]
    if older is not None and comparison.simulated != older.simulated:
        pair = (comparison, older) if comparison.simulated else (older, comparison)
        brief.insert(0, tables.validation(validated(*pair)))
    shown = [*brief, law_summary, tables.splits(comparison), tables.rates(comparison)]
    faults = tables.recoveries(comparison)
    shown += [faults] if faults.rows else []
    shown += [tables.runs(comparison)]
    aside = [tables.sentences(found), tables.staleness(comparison), law_table]

    out = path / REPORT
    for folder in (out / "figures", out / "tables"):
        with written(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    for table in (*shown, *aside):
        write_text(out / "tables" / f"{table.name}.csv", table.csv())
    drawn = [_drawn(picture, out / "figures") for picture in pictures(comparison)]
    write_text(out / SUMMARY, _markdown(comparison, against, short, found, cannot, violated, brief))
    parts = [
        *_head(comparison, against),
        *_short(short),
        *_findings(found),
        *_limits(cannot, violated),
        *_setup(comparison),
        "<h2>Figures</h2>",
        *(drawn or ["<p>No run has recorded anything that could be drawn.</p>"]),
        "<h2>Tables</h2>",
        *(_table(table) for table in shown),
        *_words(aside),
    ]
    page = out / PAGE
    write_text(page, _page(comparison.experiment.name, parts))
    return Report(
        page=page,
        short=short,
        findings=found,
        limits=cannot,
        violated=violated,
        complete=all(data.ended and not data.failed for data in comparison.runs),
    )


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _head(comparison: Comparison, against: Path | None) -> Iterator[str]:
    experiment = comparison.experiment
    ended = sum(data.ended for data in comparison.runs)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield f"<h1>{escape(experiment.name)}</h1>"
    runs = f"{ended} of {len(comparison.runs)} runs have ended"
    yield f'<p class="note">{runs}; this report was made {when}</p>'
    if experiment.description:
        yield f"<p>{escape(experiment.description)}</p>"
    if against is not None:
        yield f"<p>&ldquo;Before&rdquo; is the comparison in <code>{escape(str(against))}</code>.</p>"


def _short(short: Sequence[str]) -> Iterator[str]:
    yield "<h2>In short</h2><ul>"
    yield from (f"<li>{escape(one)}</li>" for one in short)
    yield "</ul>"


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    yield "<h2>What was found</h2>"
    if not found:
        yield "<p>One model alone was run: there is nothing to compare it with.</p>"
    most = max((one.workers for one in found), default=0)
    for where in dict.fromkeys(one.where for one in found):
        mine = [one for one in found if one.where == where]
        lines = "".join(f"<li{' class=found' if one.found else ''}>{escape(one.text)}</li>" for one in mine)
        if mine[0].workers == most:
            yield f"<h3>{escape(where)}</h3><ul>{lines}</ul>"
        else:
            yield f"<details><summary>{escape(where)}</summary><ul>{lines}</ul></details>"
    yield f'<p class="note">{escape(STATISTICS)}</p>'


def _limits(cannot: Sequence[str], violated: Sequence[str]) -> Iterator[str]:
    if violated:
        yield '<h2 class="bad">Laws that did not hold</h2><ul>'
        yield from (f'<li class="bad">{escape(one)}</li>' for one in violated[:20])
        yield "</ul>"
    yield "<h2>What this comparison cannot show</h2><ul>"
    yield from (f"<li>{escape(one)}.</li>" for one in cannot)
    yield "</ul>"


def _setup(comparison: Comparison) -> Iterator[str]:
    yield "<h2>What was compared</h2><table>"
    for name, value in _setup_rows(comparison):
        yield f'<tr><th class="text">{escape(name)}</th><td class="text">{escape(value)}</td></tr>'
    yield "</table>"


def _setup_rows(comparison: Comparison) -> Iterator[tuple[str, str]]:
    experiment = comparison.experiment
    setup, stop = experiment.setup, experiment.stop
    yield "models", ", ".join(experiment.parties)
    yield "compared with", experiment.reference
    yield "script", " ".join((experiment.script, *experiment.arguments))
    yield "servers", str(setup.servers)
    yield "workers", ", ".join(map(str, setup.workers))
    yield "carrier, wire dtype", f"{setup.carrier}, {setup.wire_dtype}"
    for profile in experiment.profiles:
        yield f"profile {profile.name}", str(profile)
    yield "seeds", ", ".join(map(str, experiment.seeds))
    if experiment.repeats > 1:
        yield "repeats of each seed", str(experiment.repeats)
    for model in experiment.parties:
        rates = [rate for rate in experiment.learning_rates.of(model) if rate is not None]
        yield (
            f"learning rates of {model}",
            ", ".join(f"{rate:g}" for rate in sorted(rates)) or "the script's own",
        )
        if experiment.optimizer.of(model):
            yield f"arguments of {model}", " ".join(experiment.optimizer.of(model))
    ends = [f"{stop.time_s:g} s"] if stop.time_s is not None else []
    ends += [f"{stop.samples} samples"] if stop.samples is not None else []
    ends += [str(stop.target)] if stop.target is not None and not stop.goes_on else []
    if stop.target is not None:
        yield "target", str(stop.target)
    if experiment.evaluation is not None:
        evaluation = experiment.evaluation
        yield "evaluated", f"every {evaluation.every_s:g} s by {evaluation.script}, a reader of the job"
    yield "a run ends", f"at {', or at '.join(ends)}, or with its script" if ends else "with its script"
    facts = dict.fromkeys(_machine(one.facts) for one in comparison.runs if one.facts is not None)
    for index, one in enumerate(facts):
        yield "machine and versions" if index == 0 else "", one


def _machine(facts: Facts) -> str:
    memory = "" if facts.memory_bytes is None else f", {facts.memory_bytes / 2**30:.0f} GiB"
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    commit = f", commit {facts.commit[:12]}{' with changes' if facts.changed else ''}" if facts.commit else ""
    return f"{facts.host}: {facts.processor}, {facts.cores} cores{memory}, {facts.system}; {versions}{commit}"


def _drawn(picture: Picture, folder: Path) -> str:
    """Writes its files, and gives its part of the page."""
    svg, png = io.BytesIO(), io.BytesIO()
    picture.figure.savefig(svg, format="svg", metadata={"Date": None})
    picture.figure.set_layout_engine("none")  # it is laid out by now, and that takes the most time
    picture.figure.savefig(png, format="png", dpi=DPI)
    with written(folder):
        (folder / f"{picture.name}.svg").write_bytes(svg.getvalue())
        (folder / f"{picture.name}.png").write_bytes(png.getvalue())
    source = base64.b64encode(svg.getvalue()).decode("ascii")
    links = " ".join(f'<a href="figures/{picture.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png"))
    return (
        f'<figure id="{picture.name}"><h3>{escape(picture.title)}</h3>'
        f'<img alt="{escape(picture.title)}" src="data:image/svg+xml;base64,{source}">'
        f"<figcaption>{escape(picture.caption)} {links}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    texts = [any(isinstance(row[index], str) for row in table.rows) for index in range(len(table.columns))]
    classes = [' class="text"' if text else "" for text in texts]
    head = "".join(
        f"<th{class_}>{escape(column)}</th>" for class_, column in zip(classes, table.columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{class_}>{escape(shown(value))}</td>" for class_, value in zip(classes, row, strict=True)
        )
        + "</tr>\n"
        for row in table.rows[:MAX_ROWS]
    )
    link = f'<a href="tables/{table.name}.csv">CSV</a>'
    more = f" The first {MAX_ROWS} of {len(table.rows)} rows." if len(table.rows) > MAX_ROWS else ""
    inner = (
        f'<p class="note">{escape(table.caption)}{more} {link}</p><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )
    if len(table.rows) > LONG_TABLE:
        inner = f"<details><summary>{len(table.rows)} rows</summary>{inner}</details>"
    return f"<h3>{escape(table.title)}</h3>{inner}"


def _words(aside: Iterable[Table]) -> Iterator[str]:
    links = ", ".join(f'<a href="tables/{one.name}.csv">{escape(one.title.lower())}</a>' for one in aside)
    yield f"<p>Also as CSV: {links}.</p><h2>Words</h2><dl>"
    yield from (f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS)
    yield "</dl>"


def _markdown(
    comparison: Comparison,
    against: Path | None,
    short: Sequence[str],
    found: Sequence[Finding],
    cannot: Sequence[str],
    violated: Sequence[str],
    brief: Sequence[Table],
) -> str:
    lines = [f"# {comparison.experiment.name}", ""]
    if comparison.experiment.description:
        lines += [comparison.experiment.description, ""]
    if against is not None:
        lines += [f'"Before" is the comparison in `{against}`.', ""]
    lines += ["## In short", "", *(f"- {one}" for one in short), ""]
    lines += ["## What was found", "", *(f"- {one}" for one in found), ""]
    if violated:
        lines += ["## Laws that did not hold", "", *(f"- {one}" for one in violated), ""]
    lines += ["## What this comparison cannot show", "", *(f"- {one}." for one in cannot), ""]
    for table in brief:
        lines += [f"## {table.title}", "", f"| {' | '.join(table.columns)} |"]
        lines += ["|---" * len(table.columns) + "|", *map(_line, table.rows), ""]
    return "\n".join(lines) + "\n"


def _line(row: Sequence[Value]) -> str:
    return f"| {' | '.join(shown(value).replace('|', chr(92) + '|') for value in row)} |"


def headlines(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The lines for a terminal: times to the target where there are any, else speeds."""
    times = tuple(one for one in found if one.question == TARGET and one.effect is not None)
    return times or tuple(one for one in found if one.question == SPEED)


def shown(value: Value) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
