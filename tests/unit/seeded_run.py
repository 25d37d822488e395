"""A run of pytest on a test that races, with the options of the project's own plugins."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.anew import run_anew
from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, race: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the source of a test in this folder."""
    (folder / "test_race.py").write_text(race)
    command = ["-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    return run_anew(*command, *options, f"--rootdir={folder}", str(folder), folder=ROOT, limit_s=LIMIT_S)
