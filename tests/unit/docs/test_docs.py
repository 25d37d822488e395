"""What README and docs say is so: links, files, options, tables, and code that runs."""

import ast
import importlib.util
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer

import ps_worker
from ps_lab import cli as lab
from ps_lab.cluster.cluster import Cluster
from ps_server import cli as server
from ps_worker import cli as worker

from .pages import PAGES, ROOT, blocks, commands, name_of, prose, table

FOLDERS = ("ps_wire", "ps_server", "ps_worker", "ps_lab", "protos", "examples", "benchmarks", "docs", "tests")
THEIRS = ("torchrun", "horovodrun")  # launchers of others, which tutorials name
APPS = {"ps-server": server.app, "ps-worker": worker.app, "ps-lab": lab.app}


def options(program: str, command: str | None = None) -> dict[str, object]:
    """The options of a command, as --help shows them: name -> parameter."""
    chosen = typer.main.get_command(APPS[program])
    for word in (command or "").split():
        chosen = chosen.commands[word]
    return {
        name: parameter
        for parameter in chosen.params
        for name in parameter.opts
        if name.startswith("--") and not getattr(parameter, "hidden", False)
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    """Every relative link names a file."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"https?://", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page):
    """Paths in backticks are files or folders of the repository; `path::test` is a test in that file."""
    known = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    for named in re.findall(r"`([\w./*-]+(?:::\w+)?)`", prose(page)):
        path, _, test = named.partition("::")
        if "*" in path or path == "train.py":
            continue
        if path.split("/")[0] in FOLDERS and "/" in path:
            assert (ROOT / path).exists(), named
            assert not test or f"def {test}(" in (ROOT / path).read_text(), named
        elif path.endswith(".py"):
            assert path in known, named


@pytest.mark.parametrize(("where", "words"), commands(), ids=[where for where, _ in commands()])
def test_commands_have_the_options_that_are_used(where, words):
    """Programs, commands, options, targets, scripts and variables of `console` blocks exist."""
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        variable = words.pop(0).partition("=")[0]
        assert any(variable in path.read_text() for path in ROOT.glob("ps_*/**/*.py")), where
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), where
    elif program == "python":
        source = (ROOT / rest[0]).read_text()
        assert all(f'"{word}"' in source for word in rest[1:] if word.startswith("--")), where
    elif program in THEIRS:
        assert all((ROOT / word).exists() for word in rest if word.startswith("examples/")), where
    elif program == ".":
        assert rest == [".venv/bin/activate"], where
    else:
        command = rest.pop(0) if program == "ps-lab" else None
        if command in ("bench", "job", "pipeline", "snapshot"):
            command += f" {rest.pop(0)}"
        known = options(program, command)
        scripts = [place for place, word in enumerate(rest) if word.endswith(".py")]
        ours, theirs = (rest[: scripts[0]], rest[scripts[0] :]) if scripts else (rest, [])
        assert {word for word in ours if word.startswith("--")} <= known.keys(), where
        if theirs and (ROOT / theirs[0]).exists():
            source = (ROOT / theirs[0]).read_text()
            assert all(f'"{word}"' in source for word in theirs[1:] if word.startswith("--")), where


@pytest.fixture(scope="module", name="reference")
def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_reference", ROOT / "docs" / "generate_reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_the_commands_has_not_drifted(reference):
    """Generated again, it is the committed one."""
    assert reference.generate() == reference.PAGE.read_text(), "run `make api`"


@pytest.mark.parametrize("program", ["ps-server", "ps-worker"])
def test_every_option_of_a_process_has_a_variable_and_a_row(program):
    """So that a container needs no arguments; `-m` says what SCRIPT is, and is no setting."""
    rows = {re.sub(r"[` ].*", "", row[0].strip("`")): row for row in table("docs/reference.md", "option")}
    for name, parameter in options(program).items():
        if name != "--help":
            assert parameter.envvar, name
            assert f"`{parameter.envvar}`" in (ROOT / "docs" / "reference.md").read_text(), name
            assert name in rows, name


def test_the_settings_without_an_option_are_those_of_connect():
    """Variables that only the environment and `connect` have."""
    known = {f"PS_{name.upper()}" for name in inspect.signature(ps_worker.connect).parameters}
    rows = [row[0].strip("`") for row in table("docs/reference.md", "variable")]
    taken = {parameter.envvar for parameter in options("ps-worker").values()}
    assert set(rows) <= known - taken
    assert {name for name in known - taken if name.endswith("_LIMIT")} <= set(rows)


def test_the_readme_is_two_screens():
    """What is longer has a page of its own."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


def test_every_law_has_a_test_that_is_named():
    """Each row of the laws names at least one test; which exist is checked with all named files."""
    for row in table("docs/consistency.md", "#", "law"):
        assert any("::" in cell for cell in row[2:]), row


def test_python_blocks_are_marked():
    """A python block runs, or it would not be tested."""
    assert not blocks("python")
    assert len(blocks("python run")) >= 3


@pytest.fixture(scope="module", name="servers")
def _servers() -> Iterator[str]:
    lines: list[str] = []
    with Cluster(num_servers=1, on_line=lambda _name, line: lines.append(line)) as cluster:
        yield ",".join(cluster.addresses)


@pytest.mark.integration
@pytest.mark.parametrize("block", blocks("python run"), ids=str)
def test_python_blocks_run(block, servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each is a whole script: it runs to its end as the only worker of a job."""
    ast.parse(block.text)
    script = tmp_path / "train.py"
    script.write_text(block.text)
    monkeypatch.setenv("PS_SERVERS", servers)
    monkeypatch.setenv("PS_JOB", f"docs-{block.page.replace('/', '-')}-{block.line}")
    runpy.run_path(str(script), run_name="__main__")
