"""What README and docs say is so: links, files, options, tables, and code that runs."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ps_lab import cli as lab
from ps_lab.cluster.cluster import Cluster
from ps_server import cli as server
from ps_worker import cli as worker

from .pages import PAGES, ROOT, blocks, commands, name_of, prose, table

FOLDERS = ("ps_wire", "ps_server", "ps_worker", "ps_lab", "protos", "examples", "benchmarks", "docs", "tests")
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
    elif program == ".":
        assert rest == [".venv/bin/activate"], where
    else:
        command = rest.pop(0) if program == "ps-lab" else None
        if command in ("bench", "job", "snapshot"):
            command += f" {rest.pop(0)}"
        known = options(program, command)
        scripts = [place for place, word in enumerate(rest) if word.endswith(".py")]
        ours, theirs = (rest[: scripts[0]], rest[scripts[0] :]) if scripts else (rest, [])
        assert {word for word in ours if word.startswith("--")} <= known.keys(), where
        if theirs and (ROOT / theirs[0]).exists():
            source = (ROOT / theirs[0]).read_text()
            assert all(f'"{word}"' in source for word in theirs[1:] if word.startswith("--")), where


@pytest.mark.parametrize("program", ["ps-server", "ps-worker"])
def test_the_readme_has_every_option(program):
    """Names, variables and defaults in the README's tables are those of the commands."""
    rows = {
        re.sub(r"[` ].*", "", row[0].strip("`")): row for row in table("README.md", f"`{program}`") if row[0]
    }
    known = {name: value for name, value in options(program).items() if name != "--help"}
    assert rows.keys() == known.keys()
    for name, row in rows.items():
        assert row[1] == f"`{known[name].envvar}`", name
        if row[2].startswith("`"):
            assert row[2] == f"`{known[name].default}`", name


@pytest.mark.parametrize("command", ["bench roundtrip", "bench step"])
def test_the_readme_has_every_option_of_a_bench(command):
    """Names and defaults in the README's tables are those of the commands."""
    rows = {
        re.sub(r"[` ,].*", "", row[0].strip("`")): row for row in table("README.md", f"`ps-lab {command}`")
    }
    known = {
        name: value
        for name, value in options("ps-lab", command).items()
        if name != "--help" and name not in value.secondary_opts
    }
    assert rows.keys() == known.keys()
    for name, row in rows.items():
        if row[1].startswith("`"):
            default = known[name].default
            assert row[1].strip("`") == str(known[name].show_default if default is None else default), name


def test_the_readme_names_the_settings_without_an_option():
    """Variables that only the environment and `connect` have, with their defaults in seconds."""
    from ps_worker import settings  # noqa: PLC0415

    rows = {row[1].strip("`"): row[2].strip("`") for row in table("README.md", "`ps-worker`") if not row[0]}
    assert rows == {
        "PS_CONNECT_LIMIT": f"{settings.CONNECT_LIMIT_S:g}",
        "PS_START_LIMIT": f"{settings.START_LIMIT_S:g}",
        "PS_RETRY_LIMIT": f"{settings.RETRY_LIMIT_S:g}",
        "PS_WAIT": f"{settings.WAIT_S:g}",
    }


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
