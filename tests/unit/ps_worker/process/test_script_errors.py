"""What a person sees of an error that ends a script that `ps-worker` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import LIMIT_S

PS_WORKER = (sys.executable, "-c", "from ps_worker.cli import main; main()", "--servers", "none")
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


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PS_WORKER, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize(
    ("words", "file"), [(("steps.py",), "steps.py"), (("-m", "pkg.steps"), "{folder}/pkg/steps.py")]
)
def test_an_error_of_the_project_shows_the_line_of_the_script(folder, words, file):
    """The one that called, through a scheduler's wrapper or not; then the error, as the last line."""
    done = run(folder, *words)
    *_, where, error = done.stderr.splitlines()
    assert where == f"{file.format(folder=folder)}:5: optimizer.step()"
    assert error.startswith("ps-worker: UsageError: ")
    assert done.returncode == 64
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "file"), [(("fails.py",), "fails.py"), (("-m", "pkg.fails"), "{folder}/pkg/fails.py")]
)
def test_an_error_of_the_script_comes_without_frames_of_the_launcher(folder, words, file):
    """As `python` shows it; with what had been handled when it came."""
    done = run(folder, *words)
    said = [line for line in done.stderr.splitlines() if set(line) - set(" ~^")]
    expected = PYTHON_SAYS.format(file=file.format(folder=folder)).splitlines()
    assert said == [line for line in expected if set(line) - set(" ~^")]
    assert done.returncode == 1


def test_a_script_that_is_no_python_is_shown_as_python_shows_it(folder):
    done = run(folder, "broken.py")
    assert done.stderr.startswith('  File "broken.py", line 1\n')
    assert "SyntaxError" in done.stderr
    assert done.returncode == 1


def test_the_scripts_own_hook_shows_its_errors(folder):
    """Libraries set one that draws or reports them."""
    hook = "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', error, trace.tb_lineno)\n"
    (folder / "hooked.py").write_text(hook + "raise ValueError('mine')\n")
    done = run(folder, "hooked.py")
    assert (done.returncode, done.stdout, done.stderr) == (1, "hook mine 3\n", "")
