"""What is skipped says why, once per reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_of_a_library(number): pytest.importorskip("no_such_library")

@pytest.mark.skipif(True, reason="no CUDA device here")
def test_of_a_gpu(): pass

def test_good(): pass
"""


@pytest.mark.parametrize("parallel", ["0", "1"])
def test_each_reason_is_a_line_with_its_count(tmp_path: Path, parallel: str):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    place = ("-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), str(tmp_path))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", parallel, "-p", "tests.skips"),
            *("-p", "no:cacheprovider", *place),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("skipped")]
    library, gpu = lines
    assert library.startswith("skipped 3: could not import 'no_such_library'")
    assert gpu == "skipped 1: no CUDA device here"
    assert "1 passed, 4 skipped" in ended.stdout
