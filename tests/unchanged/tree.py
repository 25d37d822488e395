"""A build of the project: a working tree with an environment of its own, whose commands and Python are run.

It must not know what is run. A build that is not the current one is a commit, checked out for the time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")


@dataclass(frozen=True, slots=True)
class Tree:
    """A working tree.

    Attributes:
        path: of it; its environment is `.venv`.
    """

    path: Path

    def command(self, name: str) -> tuple[str, ...]:
        """One of the project's commands, as this build has it."""
        return (str(self.path / ".venv" / "bin" / name),)

    def script(self, name: str) -> tuple[str, ...]:
        """One of the scripts here, by this build's Python."""
        return (str(self.path / ".venv" / "bin" / "python"), str(SCRIPTS / name))


CURRENT = Tree(ROOT)


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Tree]:
    """A commit's build, which borrows the current environment's packages."""
    path = folder / "before"
    _run("git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(path), commit)
    try:
        _run(sys.executable, "-m", "venv", "--without-pip", str(path / ".venv"))
        (site,) = (path / ".venv").glob("lib/python*/site-packages")
        borrowed = [entry for entry in sys.path if Path(entry).name == "site-packages"]
        (site / "zz_borrowed.pth").write_text("".join(f"{entry}\n" for entry in borrowed))
        python = str(path / ".venv" / "bin" / "python")
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
        _run(python, "-m", "pip", "install", *options, "-e", str(path))
        yield Tree(path)
    finally:
        _run("git", "-C", str(ROOT), "worktree", "remove", "--force", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
