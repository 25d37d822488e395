"""`python -m tests.dist`: makes the sdist and, from it alone, the wheel; then uses the wheel as people do.

The wheel goes into an environment of its own, which borrows the libraries of this one, and the demo's script
trains from an empty folder. So it is found what is missing in one of the two, such as a page or a C source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "dist"
SCRIPT = ROOT / "examples" / "digits.py"
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """The last line of what a command says; an error is shown and raised."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def built(kind: str, source: Path) -> Path:
    """Builds one of the two files from a source tree."""
    return OUT / run(sys.executable, "-c", BUILD, f"build_{kind}", OUT, cwd=source)


def environment(folder: Path, wheel: Path) -> Path:
    """A new environment with the wheel; its folder of commands."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    commands = folder / "bin"
    site = Path(run(commands / "python", "-c", "import site; print(site.getsitepackages()[0])", cwd=ROOT))
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", commands / "python"]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=ROOT)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "zz_libraries.pth").write_text("\n".join(libraries))
    return commands


def main() -> None:
    """Builds, installs, trains; says what is where."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        tree, empty = Path(made) / "tree", Path(made) / "empty"
        empty.mkdir()
        not_in_a_clone = shutil.ignore_patterns(".git", ".venv*", "build", "*.egg-info", "*.so")
        shutil.copytree(ROOT, tree / "clone", ignore=not_in_a_clone)
        sdist = built("sdist", tree / "clone")
        with tarfile.open(sdist) as archive:
            archive.extractall(tree, filter="data")
        wheel = built("wheel", tree / sdist.name.removesuffix(".tar.gz"))
        commands = environment(Path(made) / "environment", wheel)
        where = run(commands / "python", "-c", "import ps_worker; print(ps_worker.__file__)", cwd=empty)
        assert Path(where).is_relative_to(made), f"{where} is not of the wheel"
        shutil.copy(SCRIPT, empty)
        command = (commands / "ps-lab", "launch", "--num-servers", "1", "--num-workers", "2")
        said = run(*command, SCRIPT.name, "--epochs", "1", cwd=empty)
    for path in (sdist, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB")
    print(f"{SCRIPT.name} from the wheel, in an empty folder: {said}")


if __name__ == "__main__":
    main()
