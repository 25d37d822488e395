"""The report: one page that needs no network, of whatever runs there are, also of none."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ps_lab.compare.folder import Folder
from ps_wire.errors import UsageError

from .made import EXPERIMENT, World, made_folder, no_change

pytest.importorskip("matplotlib", reason="the extra compare is not installed")

from ps_lab.compare.report import headlines, make, shown

from .painting import unpainted

FEW = EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0, 1]")
WIDE = FEW.replace(
    '["bsp", "ssp:3", "asp"]\nworkers = 4', '["bsp", "ssp:1", "ssp:3", "asp"]\nworkers = [2, 4]'
).replace("grid = [0.001]", "grid = [0.001, 0.01]")
VOID = {"meta", "img", "link", "br"}


class Page(HTMLParser):
    """A page whose tags are closed in order, with its links, sources and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.sources += [values["src"]] if "src" in values else []
        self.links += [values["href"]] if "href" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def made(path: Path, text: str = FEW, change=no_change, **given):
    folder = made_folder(path / "out", text, change, **given)
    report = make(folder.path)
    return report, Page(report.page.read_text()), folder.path / "report"


@pytest.fixture(scope="module", name="plain")
def _plain(tmp_path_factory: pytest.TempPathFactory):
    """The report of ordinary runs."""
    return made(tmp_path_factory.mktemp("plain"))


def names(out: Path, kind: str) -> set[str]:
    return {path.stem for path in (out / "figures").glob(f"*.{kind}")}


def test_a_report_has_all_figures_tables_and_sentences(tmp_path: Path):
    report, page, out = made(tmp_path, WIDE)
    figures = {
        *("time-to-target", "loss-quiet", "loss-transient", "quality", "staleness", "time-split", "lanes"),
        *("sweep", "learning-rates", "scaling"),
    }
    assert names(out, "svg") == names(out, "png") == figures
    assert len(page.sources) == len(figures)
    assert all(str(one.text) in page.text for one in report.findings)
    assert all(one in page.text for one in report.limits)
    assert "What this comparison cannot show" in page.text
    for name in (
        "summary",
        "runs",
        "workers",
        "staleness",
        "learning-rates",
        "laws",
        "laws-summary",
        "findings",
    ):
        rows = list(csv.reader((out / "tables" / f"{name}.csv").read_text().splitlines()))
        assert len(rows) > 1, name
        assert len({len(row) for row in rows}) == 1, name
    assert report.page.stat().st_size < 5_000_000
    assert report.violated == ()
    assert report.complete


def test_the_page_needs_no_network_and_its_links_lead_to_files(plain):
    report, page, out = plain
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    for link in page.links:
        assert link == "data:," or (out / link).is_file(), link
    text = report.page.read_text()
    assert not re.search(r"(src|href)=\"(https?:)?//|@import|<script|url\(", text)


def test_the_summary_has_the_sentences_and_the_limits(plain):
    report, _, out = plain
    text = (out / "summary.md").read_text()
    assert all(f"- {one}" in text for one in (*report.findings, *report.limits))
    assert "| model | profile |" in text


def test_what_comes_from_a_file_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unpainted(monkeypatch, "svg", "png")
    text = FEW.replace('"Made for a test."', "'<script>alert(1)</script>'").replace('"quiet"', "'<b>&'")
    _, page, out = made(tmp_path, text)
    assert "<script>alert(1)</script>" in page.text
    assert "script" not in page.open
    assert "loss--b--" in names(out, "svg")


def test_a_report_of_the_same_runs_is_the_same(plain):
    """But for the moment that it was made."""
    report, _, out = plain
    first = report.page.read_text()
    again = make(out.parent).page.read_text()
    made_at = re.compile(r"this report was made [^<]*")
    assert made_at.sub("", again) == made_at.sub("", first)


def no_loss(run, world: World) -> None:
    world.loss = False


def no_samples(run, world: World) -> None:
    world.samples = 0


def no_records(run, world: World) -> None:
    world.records = False


def all_diverge(run, world: World) -> None:
    world.nan_from = 10


def diverge_at_once(run, world: World) -> None:
    world.nan_from = 0


def some_fail(run, world: World) -> None:
    world.faults = (("crash", 1, 0.3),)
    if run.model == "asp":
        world.fails, world.killed = "worker 1 was ended by SIGKILL", 1


def one_step(run, world: World) -> None:
    world.steps = 1


AWKWARD = {
    "one run": (
        FEW,
        no_change,
        lambda run: run.model == "bsp" and run.seed == 0 and run.profile.name == "quiet",
    ),
    "no run": (FEW, no_change, lambda run: False),
    "no loss": (FEW, no_loss, lambda run: True),
    "no samples": (FEW, no_samples, lambda run: True),
    "no records": (FEW, no_records, lambda run: True),
    "all diverged": (FEW, all_diverge, lambda run: True),
    "diverged at once": (FEW, diverge_at_once, lambda run: True),
    "crashes": (FEW, some_fail, lambda run: True),
    "one step": (FEW, one_step, lambda run: True),
    "target never reached": (FEW.replace("at_least = 0.9", "at_least = 2"), no_change, lambda run: True),
    "one model": (FEW.replace('"bsp", "ssp:3", "asp"', '"ssp:3"'), no_change, lambda run: True),
    "one worker": (FEW.replace("workers = 4", "workers = 1"), no_change, lambda run: True),
    "baselines alone": (
        FEW.replace('models = ["bsp", "ssp:3", "asp"]', 'models = []\nbaselines = ["none", "ddp"]'),
        no_change,
        lambda run: True,
    ),
    "no target": (
        FEW.replace('metric = "accuracy"\nat_least = 0.9', "samples = 100"),
        no_change,
        lambda run: True,
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_a_report_is_made_of_whatever_there_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """Without a warning of numpy's or matplotlib's, and with every figure that the runs have."""
    unpainted(monkeypatch, "png")  # the same lines and words as in the SVG before it
    text, change, only = AWKWARD[name]

    def short(run, world: World) -> None:
        world.steps = 30
        change(run, world)

    report, page, out = made(tmp_path, text.replace("[0, 1]", "[0]"), short, only=only)
    assert "What this comparison cannot show" in page.text
    drawn = names(out, "svg")
    if name in {"no run", "no records"}:
        assert not drawn & {"staleness", "lanes", "time-split"}
    else:
        assert "lanes" in drawn
        assert ("time-split" in drawn) == ("diverged" not in name), "a mean, which no run that diverged is in"
    rows = list(csv.DictReader((out / "tables" / "runs.csv").read_text().splitlines()))
    reached = [row for row in rows if row["to target (s)"] and row["ended"] == "finished"]
    assert ("time-to-target" in drawn) == bool(reached)
    assert report.complete == (name not in {"one run", "no run", "crashes"})
    counted = name not in {"no run", "no records", "no samples"}
    assert ("Samples are not known" in page.text) == (name == "no samples")
    if any(figure.startswith("loss") for figure in drawn):
        assert ("<!-- samples -->" in (out / "figures" / "loss-quiet.svg").read_text()) == counted
    if name == "no loss":
        assert not any(figure.startswith("loss") for figure in drawn)
    if name in {"all diverged", "diverged at once"}:
        assert "diverged" in page.text
        assert any(figure.startswith("loss") for figure in drawn)


def test_a_law_that_does_not_hold_is_at_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unpainted(monkeypatch, "svg", "png")
    folder = made_folder(tmp_path / "out", FEW)
    run = next(run for run in folder.runs if run.run.model == "asp")
    file = next(run.records.iterdir())
    file.write_text(re.sub(r'"gate_s":0\.0', '"gate_s":0.5', file.read_text(), count=1))
    report = make(folder.path)
    assert len(report.violated) == 1
    assert "law 7" in report.violated[0]
    text = report.page.read_text()
    assert text.index("Laws that did not hold") < text.index("What this comparison cannot show")


def test_two_folders_are_put_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unpainted(monkeypatch, "png")
    made_folder(tmp_path / "old", FEW)
    made_folder(tmp_path / "new", FEW)
    report = make(tmp_path / "new", tmp_path / "old")
    assert any(one.reference == "bsp before" for one in report.findings)
    assert str(tmp_path / "old") in report.page.read_text()


def test_a_damaged_record_is_named(tmp_path: Path):
    folder = made_folder(tmp_path / "out", FEW)
    file = next(folder.runs[0].records.iterdir())
    file.write_text(file.read_text().replace('"tau"', '"tauu"', 1))
    with pytest.raises(UsageError, match=r"jsonl, line 2: unknown column 'tauu'"):
        make(folder.path)


def test_a_terminal_shows_times_where_there_are_any(plain):
    report, _, _ = plain
    assert {one.question for one in headlines(report.findings)} == {"time to target"}
    others = [one for one in report.findings if one.question != "time to target"]
    assert {one.question for one in headlines(others)} == {"samples per second"}


def test_numbers_are_shown_with_four_digits():
    assert [shown(value) for value in (None, 3, 12345, 0.123456, 12345.6, float("nan"), "x")] == [
        *("-", "3", "12,345", "0.1235", "12,346", "nan", "x")
    ]


def test_a_folder_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="no folder of a comparison"):
        make(tmp_path)
    assert Folder.make(tmp_path / "x", made_folder(tmp_path / "y", FEW).experiment, FEW).missing()
