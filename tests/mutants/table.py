"""The table of mutants: the rows of all files beside this one, and what may be wrong with a row.

A file of rows is one area of the service and has `MUTANTS`; nothing else makes it one.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from .mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]


def areas() -> dict[str, tuple[Mutant, ...]]:
    """Rows by the name of their file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__main__")
    modules = {name: importlib.import_module(f"tests.mutants.{name}") for name in names}
    return {name: tuple(module.MUTANTS) for name, module in modules.items() if hasattr(module, "MUTANTS")}


def rows() -> list[Mutant]:
    """All of them."""
    return [row for area in areas().values() for row in area]


def problems(table: Sequence[Mutant]) -> list[str]:
    """What is wrong with the table, one sentence each."""
    doubled = [name for name, count in Counter(row.name for row in table).items() if count > 1]
    return [f"{name}: two rows have this name" for name in doubled] + [
        f"{row.name}: {problem}" for row in table for problem in _problems_of(row)
    ]


def _problems_of(row: Mutant) -> Iterator[str]:
    path = ROOT / row.file
    if not path.is_file():
        yield f"there is no {row.file}"
    elif (count := path.read_text().count(row.text)) != 1:
        yield f"its text stands {count} times in {row.file}, not once"
    elif row.fault == row.text:
        yield "its fault is what stands there"
    elif path.suffix == ".py":
        try:
            ast.parse(path.read_text().replace(row.text, row.fault))
        except SyntaxError as error:
            yield f"its fault is no Python: {error}"
    if not row.tests or isinstance(row.tests, str):
        yield "it names no test"
        return
    for test in row.tests:
        file, _, function = test.partition("::")
        if not (ROOT / file).is_file():
            yield f"there is no {file}"
        elif function and function.partition("[")[0] not in _functions_of(ROOT / file):
            yield f"there is no {test}"


@cache
def _functions_of(path: Path) -> frozenset[str]:
    """Names of a file's test functions, also in classes."""
    found = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, found))
