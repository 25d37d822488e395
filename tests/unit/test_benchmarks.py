"""The scripts in `benchmarks/`, which no other test runs: what they import is there, what is typed is taken.

Scripts and their options are looked up in the sources: none is imported, so it costs no time.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import typer

from ps_lab.bench.cli import app

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ps_lab", "ps_server", "ps_worker", "ps_wire")
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))


def taken(script: Path) -> list[tuple[str, str]]:
    """The modules of ours that a script imports from, each with a name; of generated ones nothing is seen."""
    return [
        (node.module, name.name)
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.split(".")[0] in PACKAGES
        and not node.module.startswith("ps_wire.v1")
        for name in node.names
    ]


@cache
def given(module: str) -> frozenset[str]:
    """The names that a module has: its own, those it imports, and modules and packages in it."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    inside = {it.stem for it in path.iterdir()} if path.is_dir() else set()
    return frozenset(names(ast.parse(source.read_text(encoding="utf-8")))) | inside


def names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_benchmark_imports_is_there(script: Path):
    assert [(module, name) for module, name in taken(script) if name not in given(module)] == []


def test_there_are_benchmarks_that_take_something():
    assert sum(map(len, map(taken, SCRIPTS))) > 20


class Figure(float):
    """A number that has every figure, each of them this number."""

    def __getitem__(self, key: str) -> Figure:
        return self


class Typed:
    """In place of processes: notes what is typed."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def printed(self, words: Sequence[str]) -> Figure:
        self.commands.append(list(words))
        return Figure(1)

    def written(self, words: Sequence[str]) -> Figure:
        return self.printed([*words, "--json", "figures.json"])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`benchmarks/run.py`."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("run")
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def parser_of(script: Path) -> argparse.ArgumentParser:
    """The parser that a script makes; it takes nothing where the script makes none."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "parser.add_argument":
            node.keywords = [it for it in node.keywords if it.arg != "help"]
            eval(ast.unparse(node), {"parser": parser, "Path": Path})
    return parser


def test_what_make_bench_types_for_each_row_is_taken(bench: ModuleType):
    """Whatever option or choice has another name now would fail there, an hour later, or never be seen."""
    typed = Typed()
    with bench.Runs(5, typed) as runs:
        runs.tls_dir, runs.idle_server_bytes = (lambda: "certificates"), (lambda: 0)
        for row in bench.ROWS:
            assert isinstance(row.value(runs), float), row.what
    assert len(typed.commands) > 50
    for program, *words in typed.commands:
        if Path(program).name == "ps-lab":
            group, command, *options = words
            assert group == "bench"
            typer.main.get_command(app).commands[command].make_context(command, options)
        else:
            script, *options = words
            parser_of(Path(script)).parse_args(options)


def test_whoever_starts_a_step_worker_tells_it_all_that_it_reads():
    """It ended with a KeyError, once the bench of the package had told it more than this script did."""
    worker = ast.parse((ROOT / "ps_lab/bench/children/step_worker.py").read_text(encoding="utf-8"))
    read = {
        node.slice.value
        for node in ast.walk(worker)
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == "configuration"
        and isinstance(node.slice, ast.Constant)
    }
    told = {
        key.value
        for node in ast.walk(ast.parse((ROOT / "benchmarks/group_step.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert len(read) > 5
    assert read <= told
