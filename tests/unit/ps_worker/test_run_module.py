"""`ps-worker -m pkg.mod` runs a module as `python -m` does."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.anew import run_anew
from tests.integration.processes import Process, Start

SAYS = "import sys; print(__name__, __package__, sys.argv[1:], sys.argv[0] == __file__, __spec__.name)\n"
PS_WORKER = ("-c", "from ps_worker.cli import main; main()", "--servers", "none", "-m")
PYTHON = ("-m",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text("from . import other\n" + SAYS)
    (package / "other.py").write_text("")
    (package / "__main__.py").write_text(SAYS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import not_there_at_all\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").write_text("")
    return tmp_path


def forked(spawn: Start, folder: Path, *words: str) -> Process:
    """The same where how the process ends is not asked: it need not import torch."""
    with contextlib.chdir(folder):
        return spawn("ps-worker", "--servers", "none", "-m", *words)


@pytest.mark.parametrize("name", ["pkg.mod", "pkg"])
def test_a_module_is_run_as_python_runs_it(spawn: Start, folder, name):
    words = (name, "--lr", "3", "-m", "x")
    ours, pythons = forked(spawn, folder, *words), run_anew(*PYTHON, *words, folder=folder)
    assert ours.wait_end() == pythons.returncode == 0, ours.text
    assert ours.text == pythons.stdout.rstrip("\n")


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise KeyboardInterrupt", 130)])
def test_what_a_script_has_not_flushed_is_written_when_it_ends(folder, end, code):
    """Also of a file that is in a cycle, as most that a script's classes have opened."""
    (folder / "pkg" / "leaves.py").write_text(
        "class Log:\n"
        "    def __init__(self):\n"
        "        self.me, self.file = self, open('in_a_cycle', 'w')\n"
        "log, plain = Log(), open('plain', 'w')\n"
        "log.file.write('first')\n"
        "plain.write('second')\n" + end
    )
    assert run_anew(*PS_WORKER, "pkg.leaves", folder=folder).returncode == code
    assert ((folder / "in_a_cycle").read_text(), (folder / "plain").read_text()) == ("first", "second")


def test_after_ctrl_c_the_interpreter_does_not_look_through_what_the_script_has_imported(folder):
    """Somebody waits, and with a compiler's modules that takes a second; what runs at exit still does."""
    (folder / "pkg" / "stops.py").write_text(
        "import atexit, gc\n"
        "kept = [[] for _ in range(10_000)]\n"
        "before = gc.get_freeze_count()\n"
        "atexit.register(lambda: print(gc.get_freeze_count() - before >= len(kept)))\n"
        "raise KeyboardInterrupt\n"
    )
    done = run_anew(*PS_WORKER, "pkg.stops", folder=folder)
    assert (done.returncode, done.stdout) == (130, "True\n"), done.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pkg.nothing", "no module pkg.nothing here"),
        ("nothing.mod", "no module nothing.mod here"),
        ("empty", "no module empty.__main__ here"),
    ],
)
def test_a_module_that_is_not_there_is_named(spawn: Start, folder, name, says):
    done = forked(spawn, folder, name)
    assert done.wait_end() == 64
    assert says in done.text
    assert "Traceback" not in done.text


def test_an_error_of_the_package_itself_is_shown_as_it_is(spawn: Start, folder):
    done = forked(spawn, folder, "broken.mod")
    assert done.wait_end() == 1
    assert "No module named 'not_there_at_all'" in done.text
