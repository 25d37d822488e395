"""Metrics of real processes, and a real Prometheus that answers every query of dashboard and alerts."""

from __future__ import annotations

import json
import re
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ps_lab.cluster.ports import free_ports
from ps_wire.metrics.families import COORDINATOR, SHARD, WORKER, Family
from tests.until import LIMIT_S, until

from . import endless
from .processes import Start, ended, run
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration
FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "components" / "monitoring"
SHARDS, WORKERS = 2, 2
WINDOW = "30s"  # in place of what Grafana puts there


class Job:
    """A job under ssp that trains until it is told to end, with servers and workers that show metrics.

    Attributes:
        servers: ports of their metrics, in shard order.
        workers: ports of theirs.
        name: of the job.
    """

    def __init__(self, spawn: Start, folder: Path) -> None:
        self.name = fresh_job()
        self._end = folder / "end"
        self._cluster = Servers(
            spawn,
            SHARDS,
            *("--metrics-port", "0", "--snapshot-dir", str(folder / "snapshots"), "--snapshot-every", "1s"),
        )
        self.servers = [
            int(process.wait_line(r"metrics on \S+:(\d+)")[1]) for process in self._cluster.processes
        ]
        self.workers = free_ports(WORKERS)
        self._workers = [
            spawn(
                "ps-worker",
                *("--servers", self._cluster.option, "--job", self.name, "--consistency", "ssp:2"),
                *("--num-workers", str(WORKERS), "--worker", str(worker), "--metrics-port", str(port)),
                *(endless.PATH, str(self._end)),
            )
            for worker, port in enumerate(self.workers)
        ]

    def close(self) -> None:
        """It ends in order."""
        self._end.touch()
        assert [process.wait_end() for process in self._workers] == [0] * WORKERS
        assert self._cluster.close() == [0] * SHARDS


@pytest.fixture
def job(spawn: Start, tmp_path: Path) -> Iterator[Job]:
    made = Job(spawn, tmp_path)
    yield made
    made.close()


def scrape(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as reply:
            return reply.read().decode()
    except urllib.error.URLError:  # it does not listen yet
        return ""


def series(text: str) -> dict[str, list[dict[str, str]]]:
    """Name of the family -> labels of each series of it, without a bucket's bound."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = [
            {label: value for label, value in sample.labels.items() if label != "le"}
            for sample in family.samples
        ]
    return found


def check(port: int, families: tuple[Family, ...]) -> None:
    """Each family has a series, with the labels and the kind that the code says."""
    until(lambda: all(series(scrape(port)).get(family.name) for family in families), f"all are on {port}")
    text = scrape(port)
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    for family in families:
        assert kinds[family.name.removesuffix("_total")] == family.kind
    for name, labels in series(text).items():
        (family,) = [it for it in families if it.name == name]
        assert all(set(it) == set(family.labels) for it in labels), name


def test_every_metric_has_series_with_its_labels_while_a_job_trains(job: Job):
    """And what they say goes together."""
    check(job.servers[0], (*SHARD, *COORDINATOR))
    check(job.servers[1], SHARD)
    for port in job.workers:
        check(port, WORKER)
    before = samples(job.servers[1])
    until(lambda: samples(job.servers[1])["ps_rounds_total"] > before["ps_rounds_total"], "a round more")
    seen = samples(job.servers[1])
    pushes = {
        name: seen[f"ps_pushes_total {name}"] for name in ("received", "applied", "dropped", "abstained")
    }
    assert pushes["received"] == pushes["applied"] + pushes["dropped"] + pushes["abstained"] > 0
    assert seen["ps_staleness_updates_count"] == pushes["applied"] == seen["ps_apply_seconds_count"]
    assert seen["ps_gate_wait_seconds_count"] == seen["ps_pulls_total"]
    assert seen["ps_clock_gap_steps_count"] == pushes["received"]
    assert seen["ps_staleness_bound_updates"] == (2 * 2 + 1) * (WORKERS - 1)


def samples(port: int) -> dict[str, float]:
    """Name, with the outcome where it has one -> value, of what one job and table have."""
    found = {}
    for family in text_string_to_metric_families(scrape(port)):
        for sample in family.samples:
            found[" ".join([sample.name, *filter(None, [sample.labels.get("outcome")])])] = sample.value
    return found


class Prometheus:
    """A real one that scrapes a job."""

    def __init__(self, program: str, job: Job, folder: Path) -> None:
        (self._port,) = free_ports(1)
        config = folder / "prometheus.yml"
        jobs = [
            {
                "job_name": name,
                "scrape_interval": "1s",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
            for name, ports in (("servers", job.servers), ("workers", job.workers))
        ]
        config.write_text(json.dumps({"scrape_configs": jobs}))  # JSON is YAML
        self.process = run(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )

    def ask(self, query: str) -> list[Any]:
        """The series of an answer; raises where the query is refused."""
        data = urllib.parse.urlencode({"query": query}).encode()
        url = f"http://127.0.0.1:{self._port}/api/v1/query"
        try:
            with urllib.request.urlopen(url, data, timeout=LIMIT_S) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return []
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        except urllib.error.URLError:
            return []
        return answer["data"]["result"]


def queries() -> Iterator[tuple[str, str]]:
    """(where, query): of an alert the value of its condition, since nothing fires."""
    yaml = pytest.importorskip("yaml")
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", WINDOW).replace('"$ps_job"', '".*"')
            yield panel["title"], query
    for rule in yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"][0]["rules"]:
        text, count = re.subn(r" (>|==) ", r" \1 bool ", rule["expr"])
        assert count == 1, rule["alert"]
        yield rule["alert"], text


def test_a_real_prometheus_answers_every_query_of_dashboard_and_alerts(job: Job, tmp_path: Path):
    """None fails and none is empty, and no alert would fire but those about stragglers."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    prometheus = Prometheus(program, job, tmp_path)
    try:
        for where, query in queries():
            until(lambda query=query: prometheus.ask(query), f"{where}: {query} has an answer", pause_s=0.2)
        quiet = {"PsShardDown", "PsServersAbsent", "PsSnapshotFailed", "PsMemoryNearLimit", "PsWorkerEvicted"}
        values = {where: prometheus.ask(query) for where, query in queries() if where in quiet}
        assert {where: [it["value"][1] for it in found] for where, found in values.items()} == {
            where: ["0"] * len(found) for where, found in values.items()
        }
        assert values.keys() == quiet
    finally:
        prometheus.process.kill()


@pytest.mark.parametrize("program", ["ps-server", "ps-worker"])
def test_metrics_are_not_shown_to_a_network_by_accident(program, spawn: Start, script: str):
    """As `--host`: the ways out are named."""
    arguments = ["--metrics-port", "0", "--metrics-host", "0.0.0.0"]
    process = spawn(program, *arguments, *([script] if program == "ps-worker" else []))
    code, line = ended(process)
    assert code == {"ps-server": 78, "ps-worker": 64}[program]
    assert "lets anybody" in line


def test_a_metrics_port_that_is_taken_ends_the_server_and_is_named(spawn: Start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn("ps-server", "--port", "0", "--metrics-port", str(port))
        code, line = ended(process)
    assert code == 69
    assert f"127.0.0.1:{port}" in line
    assert "--metrics-port" in line
