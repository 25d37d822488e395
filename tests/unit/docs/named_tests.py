"""Tests that a cell of a page names: `path::name`, one or more."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from .pages import ROOT

NAMED = re.compile(r"`(tests/[\w/]+/test_\w+\.py)::(test_\w+)`")


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file; none if there is no such file."""
    if not path.exists():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, functions) and node.name.startswith("test_")
    )


def fault_of_cell(cell: str) -> str | None:
    """What is wrong with a cell that names tests, or None."""
    named = NAMED.findall(cell)
    if not named or NAMED.sub("", cell).strip(", "):
        return "the last cell is not a list of `path::name`"
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(ROOT / path)]
    return f"there is no {missing[0]}" if missing else None
