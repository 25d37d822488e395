"""Facts of a run: its machine, versions, the commit, and the bytes of the script."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch-parameter-server", "torch", "numpy", "grpcio")
GIT_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of one run, as they stand in its folder.

    Attributes:
        host: name of the machine.
        system: kernel and its version.
        processor: as the system calls it.
        cores: that this process may use.
        memory_bytes: of the machine; None: not known.
        versions: of Python and of the packages that compute.
        commit: of the repository that the script is in; "": there is none.
        changed: files of it differ from the commit.
        script_sha256: of the script.
    """

    host: str
    system: str
    processor: str
    cores: int
    memory_bytes: int | None
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    changed: bool = False
    script_sha256: str = ""

    @property
    def simulated(self) -> bool:
        """The run was one in virtual time."""
        return "simulated" in self.versions

    def to_json(self) -> dict[str, Any]:
        """As `config.json` has it."""
        return asdict(self)


def gather(script: Path, **versions: str) -> Facts:
    """The facts of this machine, for a script; `versions` are of what else the figures depend on."""
    commit, changed = _git(script.parent)
    return Facts(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        versions={"python": platform.python_version(), **_versions(), **versions},
        commit=commit,
        changed=changed,
        script_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _git(folder: Path) -> tuple[str, bool]:
    git = shutil.which("git")
    if git is None:
        return "", False
    answers = []
    for words in (("rev-parse", "HEAD"), ("status", "--porcelain")):
        try:
            done = subprocess.run(
                [git, "-C", str(folder), *words],
                capture_output=True,
                text=True,
                timeout=GIT_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "", False
        if done.returncode:
            return "", False
        answers.append(done.stdout.strip())
    return answers[0], bool(answers[1])
