"""`python -m tests.matrix`: tests under each supported Python, with the lowest and the newest torch.

Each pair gets an environment in `build/matrix`. A Python that is not on PATH, or a torch that does not
install there, is a line in the table and no failure: whoever needs that pair sees that it was not tried.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What meets Python and torch most: arithmetic, hooks, schedulers, compiled parts, and scripts over processes.
TESTS = (
    *("tests/unit/ps_wire", "tests/unit/ps_server/shard", "tests/unit/ps_worker", "tests/component/wrap"),
    *("tests/component/training/test_overlap.py", "tests/component/training/test_mixed_precision.py"),
    "tests/integration/test_tutorials.py",
)


def lowest_torch() -> str:
    """The lowest that pyproject.toml admits, as pip takes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = [it for it in project["dependencies"] if it.startswith("torch>=")]
    return f"torch=={found.removeprefix('torch>=')}.*"


def tried(version: str, torch: str) -> tuple[str, bool]:
    """What came of one pair, and whether that is no failure."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
        return f"not tried: no python{version} on PATH", True
    folder = ROOT / "build" / "matrix" / re.sub(r"[^\w.]+", "-", f"{version}-{torch}").strip("-.")
    own = folder / "bin" / "python"
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"], check=True)
    words = ("install", "--quiet", torch, "-e", ".[certs,compare,examples]", "--group", "test")
    done = subprocess.run([own, "-m", "pip", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return f"does not install: {(errors or ['pip failed'])[0]}", True
    installed = subprocess.run(
        [own, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        return f"torch does not import: {installed.stderr.strip().splitlines()[-1]}", False
    done = subprocess.run(
        [own, "-m", "pytest", *TESTS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (folder / "pytest.txt").write_text(done.stdout + done.stderr)
    last = (done.stdout.strip().splitlines() or ["pytest said nothing"])[-1]
    return f"torch {installed.stdout.strip()}: {last} ({folder / 'pytest.txt'})", done.returncode == 0


def main() -> int:
    """All pairs that were asked for; 1 if tests of one failed."""
    parser = argparse.ArgumentParser(description="Tests under several Pythons and releases of torch.")
    parser.add_argument("--python", action="append", help="such as 3.12; may be given again")
    parser.add_argument("--torch", action="append", help="as pip takes it: 'torch==2.13.0'")
    args = parser.parse_args()
    well = True
    for version in args.python or PYTHONS:
        for torch in args.torch or (lowest_torch(), "torch"):
            said, fine = tried(version, torch)
            print(f"python {version}, {torch}: {said}", flush=True)
            well = well and fine
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
