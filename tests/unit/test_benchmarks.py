"""The scripts in `benchmarks/`, which no other test runs: what they take from the packages is there.

Looked up in the sources: nothing is imported, so it costs no time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

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
