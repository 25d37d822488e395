"""What a person sees of an error that ends a script that `ps-worker` runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.processes import Start

Run = Callable[..., tuple[int, list[str]]]
STEPS = """\
import torch
import ps_worker as ps

def train(optimizer):
    optimizer.step()

with ps.connect() as worker:
    model = torch.nn.Linear(2, 2)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    worker.finish()
    train(optimizer)
"""
FAILS = """\
def deeper():
    raise ValueError("mine")

def fails():
    try:
        {}["no"]
    except KeyError:
        deeper()

fails()
"""
PYTHON_SAYS = """\
Traceback (most recent call last):
  File "{file}", line 6, in fails
    {{}}["no"]
    ~~^^^^^^
KeyError: 'no'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{file}", line 10, in <module>
    fails()
  File "{file}", line 8, in fails
    deeper()
  File "{file}", line 2, in deeper
    raise ValueError("mine")
ValueError: mine
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    for name, text in (("steps", STEPS), ("fails", FAILS), ("broken", "x = (\n")):
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "pkg" / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def run(spawn: Start, folder: Path) -> Run:
    def run(*words: str) -> tuple[int, list[str]]:
        """Exit code and lines of what the script and its end said."""
        with contextlib.chdir(folder):
            process = spawn("ps-worker", "--servers", "none", *words)
        return process.wait_end(), process.lines

    return run


@pytest.mark.parametrize(
    ("words", "file"), [(("steps.py",), "steps.py"), (("-m", "pkg.steps"), "{folder}/pkg/steps.py")]
)
def test_an_error_of_the_project_shows_the_line_of_the_script(run, folder, words, file):
    """The one that called, through a scheduler's wrapper or not; then the error, as the last line."""
    code, lines = run(*words)
    *_, where, error = lines
    assert where == f"{file.format(folder=folder)}:5: optimizer.step()"
    assert error.startswith("ps-worker: UsageError: ")
    assert code == 64
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "file"), [(("fails.py",), "fails.py"), (("-m", "pkg.fails"), "{folder}/pkg/fails.py")]
)
def test_an_error_of_the_script_comes_without_frames_of_the_launcher(run, folder, words, file):
    """As `python` shows it; with what had been handled when it came."""
    code, lines = run(*words)
    said = [line for line in lines if set(line) - set(" ~^")]
    expected = PYTHON_SAYS.format(file=file.format(folder=folder)).splitlines()
    assert said == [line for line in expected if set(line) - set(" ~^")]
    assert code == 1


def test_a_script_that_is_no_python_is_shown_as_python_shows_it(run):
    code, lines = run("broken.py")
    assert lines[0] == '  File "broken.py", line 1'
    assert lines[-1].startswith("SyntaxError")
    assert code == 1


def test_the_scripts_own_hook_shows_its_errors(run, folder):
    """Libraries set one that draws or reports them."""
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', error, trace.tb_lineno)\n"
    (folder / "hooked.py").write_text(hook + "raise ValueError('mine')\n")
    assert run("hooked.py") == (1, ["hook mine 3"])
