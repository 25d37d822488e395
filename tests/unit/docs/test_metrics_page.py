"""The page of metrics, the dashboard and the alerts use the names, labels and kinds that the code has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_wire.metrics.families import COORDINATOR, SERVER, SHARD, WORKER, MetricKind
from tests.until import LIMIT_S

from .pages import ROOT, table

FOLDER = ROOT / "deploy" / "kubernetes" / "components" / "monitoring"
FAMILIES = {family.name: family for family in (*SERVER, *WORKER)}
# Labels that Prometheus, or the manifests of the pods, add to each series.
GIVEN = {"le", "namespace"}
_SUFFIXES = ("_bucket", "_sum", "_count")


def rules() -> list[dict[str, object]]:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return group["rules"]


def queries() -> Iterator[tuple[str, str]]:
    """(where, query) of dashboard and rules."""
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in rules():
        yield str(rule["alert"]), str(rule["expr"])


def family_of(name: str) -> str:
    for suffix in _SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and base in FAMILIES and FAMILIES[base].kind is MetricKind.HISTOGRAM:
            return base
    return name


@pytest.mark.parametrize("families", [SHARD, COORDINATOR, WORKER], ids=["shard", "coordinator", "worker"])
def test_the_tables_are_those_of_the_code(families):
    """Name, kind, labels and meaning, in the code's order."""
    expected = [
        [
            f"`{it.name}`",
            str(it.kind),
            ", ".join(f"`{label}`" for label in it.labels),
            it.meaning,
        ]
        for it in families
    ]
    rows = [row for row in table("docs/metrics.md", "metric", "kind") if row[0] in {it[0] for it in expected}]
    assert rows == expected


def test_names_are_unique_and_end_as_their_kind_and_unit_say():
    assert len(FAMILIES) == len(SERVER) + len(WORKER)
    for name, family in FAMILIES.items():
        assert re.fullmatch(r"ps_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind is MetricKind.COUNTER), name
        assert not name.endswith(_SUFFIXES), name
        assert "job" not in family.labels, "Prometheus has that label for itself"


def test_every_query_names_metrics_of_ours_with_labels_that_they_have():
    for where, query in queries():
        text = re.sub(r'"[^"]*"', '""', query)
        names = re.findall(r"\bps_[a-z_]+", re.sub(r"\b(by|on) \([^)]*\)|\{[^}]*\}", "", text))
        assert names, where
        found = [FAMILIES.get(family_of(name)) for name in names]
        assert all(found), (where, names)
        known = set.intersection(*[set(family.labels) for family in found])
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", text):
            assert {label.strip() for label in labels.split(",")} <= known | GIVEN, where
        for selector in re.findall(r"(ps_[a-z_]+)\{([^}]*)\}", text):
            family = FAMILIES[family_of(selector[0])]
            assert set(re.findall(r"(\w+)=~?", selector[1])) <= set(family.labels) | GIVEN, where


def test_the_page_has_a_row_for_each_alert_with_its_time():
    """In the order of the rules."""
    times = {"1m": "1 min", "5m": "5 min", "10m": "10 min", None: "at once"}
    expected = [(f"`{rule['alert']}`", times[rule.get("for")]) for rule in rules()]
    assert [(row[0], row[2]) for row in table("docs/metrics.md", "alert", "fires when")] == expected


def test_every_alert_has_a_severity_and_says_what_it_means():
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert {"summary", "description"} <= set(rule["annotations"])


def test_promtool_accepts_the_rules(tmp_path: Path):
    yaml = pytest.importorskip("yaml")
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]))
    outcome = subprocess.run(
        [promtool, "check", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "FAILED" not in outcome.stdout + outcome.stderr


def test_the_dashboard_can_be_imported():
    """Panels have numbers of their own, do not overlap, and ask the data source that is chosen."""
    board = json.loads((FOLDER / "dashboard.json").read_text())
    assert {it["name"] for it in board["templating"]["list"]} == {"datasource", "ps_job"}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
