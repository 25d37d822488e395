"""What `make free-threaded` runs needs neither torch nor grpc, which have no wheels for every such Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys
sys.modules["torch"] = sys.modules["grpc"] = None
import pytest
sys.exit(pytest.main(["--collect-only", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_it_can_be_collected_without_torch_and_grpc():
    dry = subprocess.run(
        ["make", "-n", "free-threaded", "PYTHON_FREE=python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    files = [word for word in dry.stdout.split() if word.startswith("tests/")]
    assert files
    outcome = subprocess.run(
        [sys.executable, "-c", WITHOUT, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,  # to import all these files
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout
