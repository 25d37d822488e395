"""A copy of the repository in which a fault is put in force, and taken back.

Whoever runs in it has it as the working directory and first on PYTHONPATH, so the processes that tests start
import the copy, too, although the commands are those of the installation.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .mutant import Mutant
from .table import ROOT

SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
COMPILED = {  # sources, and what each is built to
    "ps_wire/process/kernels.c": "ps_wire/process/_kernels*.so",
    "ps_worker/memory/tensor_list.cpp": "ps_worker/memory/_tensor_list*.so",
}


class Tree:
    """One copy, for one run at a time.

    Attributes:
        path: of the copy.
        log: what the last run has printed.
        result: what the last run has said of its tests.
        temporary: for the files of the last run.
    """

    def __init__(self, folder: Path) -> None:
        """Copies into a new folder, whose path is short: sockets lie below it."""
        self.path = folder / "tree"
        self.log, self.result, self.temporary = folder / "log", folder / "result", folder / "tmp"
        self._loaded = folder / "loaded"
        shutil.copytree(ROOT, self.path, ignore=SKIPPED)

    @contextmanager
    def fault(self, row: Mutant) -> Iterator[None]:
        """Has a row's fault in force.

        Raises:
            CannotBuild: the mutated C code is refused by the compiler.
        """
        file = self.path / row.file
        libraries = [path for pattern in COMPILED.values() for path in self.path.glob(pattern)]
        kept = {it: (it.read_bytes(), it.stat()) for it in (file, *libraries)}  # the repository may change
        text = file.read_text().replace(row.text, row.fault)
        if file.suffix == ".py":
            text = traced(text, self._loaded)
        self._loaded.unlink(missing_ok=True)
        try:
            self._write(file, text)
            if row.file in COMPILED:
                self._build(COMPILED[row.file])
            yield
        finally:
            for path, (data, status) in kept.items():
                path.write_bytes(data)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            self._forget(file)

    @property
    def loaded(self) -> bool:
        """Whether a process of the last run has imported the mutated Python file."""
        return self._loaded.exists()

    def environment(self) -> dict[str, str]:
        """Of a run in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PS_")}
        return kept | {
            "PYTHONPATH": str(self.path),
            "TMPDIR": str(self.temporary),
            "HYPOTHESIS_PROFILE": "mutants",
        }

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        self._forget(file)

    def _forget(self, file: Path) -> None:
        """Bytecode is found by time and size of its source, which a fault may leave as they are."""
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            cached.unlink()

    def _build(self, libraries: str) -> None:
        shutil.rmtree(self.path / "build", ignore_errors=True)
        for library in self.path.glob(libraries):
            library.unlink()
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--force"]
        made = subprocess.run(command, cwd=self.path, capture_output=True, text=True, check=False)
        if not list(self.path.glob(libraries)):
            raise CannotBuild(made.stdout + made.stderr)


def traced(text: str, file: Path) -> str:
    """Python code whose import makes a file, before it does anything else."""
    starts = [
        min([node.lineno, *(it.lineno for it in getattr(node, "decorator_list", ()))])
        for node in ast.parse(text).body
        if not isinstance(node, ast.Expr) and getattr(node, "module", "") != "__future__"
    ]
    first = starts[0] - 1 if starts else 0
    lines = text.splitlines(keepends=True)
    trace = f"__import__('os').close(__import__('os').open({str(file)!r}, {os.O_WRONLY | os.O_CREAT}))\n"
    return "".join([*lines[:first], trace, *lines[first:]])


class CannotBuild(Exception):
    """The compiler refuses a fault."""
