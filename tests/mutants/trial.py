"""One run of some tests in a tree, forked from a process that has imported all but our own packages.

Between that process and pytest stands a warden, which becomes the parent of whatever a test's processes leave
behind and ends it all: when pytest ends, at the limit, or when the process that asked is gone. The first
failure of a mutant's run ends it at once, without tearing anything down.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tree import Tree

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LOOK_S = 1.0  # between two looks at how far a run is
# All that tests and packages import, else each run would: 4 s.
WARM = (
    "torch",
    "torch._dynamo",
    "torch.utils.data",
    "numpy",
    "safetensors.torch",
    "fsspec",
    "typer",
    "rich.live",
    "rich.progress",
    "grpc.aio",
    "grpc_health.v1.health_pb2_grpc",
    "grpc_reflection.v1alpha.reflection",
    "google.protobuf.message",
    "cryptography.x509",
    "ssl",
    "asyncio",
    "concurrent.futures",
    "pytest",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "_hypothesis_pytestplugin",
    "hypothesis.stateful",
)
NO_OTHER_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin")


def warm_up() -> None:
    """Imports once what each run would; starts no thread, for forks do not take threads along."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run.

    Attributes:
        end: `passed`, `failed`, `hung`, `killed by N`, `not collected`, `lost`: how pytest came to its end.
        failed: node id of the first test that failed, or empty.
        passed: seconds by node id.
        skipped: node ids.
        at: node id of the test that had begun last.
        loaded: whether the mutated file was imported.
    """

    end: str
    failed: str
    passed: dict[str, float]
    skipped: frozenset[str]
    at: str
    loaded: bool


class Trial:
    """A run under way.

    Attributes:
        pidfd: readable when it is over.
    """

    def __init__(self, tree: Tree, tests: Sequence[str], limit_s: float) -> None:
        """Begins it; `limit_s` is for the way to the first test, and for each part of one."""
        self._tree = tree
        shutil.rmtree(tree.temporary, ignore_errors=True)
        tree.temporary.mkdir()
        tree.result.write_text("")
        ours, self._life = os.pipe()  # its end tells the warden that we are gone
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._life)
            _warden(tree, tests, limit_s, ours)
        os.close(ours)
        self.pidfd = os.pidfd_open(self._pid)

    def outcome(self) -> Outcome:
        """Waits for its end."""
        os.waitpid(self._pid, 0)
        os.close(self.pidfd)
        os.close(self._life)
        passed: dict[str, float] = {}
        skipped, failed, at, end = set[str](), "", "", "lost"
        for line in self._tree.result.read_text().splitlines():
            entry = json.loads(line)
            match entry["is"]:
                case "begun":
                    at = entry["test"]
                case "failed":
                    failed = failed or entry["test"]
                case "passed":
                    passed[entry["test"]] = passed.get(entry["test"], 0.0) + entry["seconds"]
                case "skipped":
                    skipped.add(entry["test"])
                case "end":
                    end = entry["how"]
        loaded = self._tree.loaded
        passed.pop(failed, None)
        return Outcome(
            end="failed" if failed else end,
            failed=failed,
            passed={test: seconds for test, seconds in passed.items() if test not in skipped},
            skipped=frozenset(skipped),
            at=at,
            loaded=loaded,
        )

    def stop(self) -> None:
        """Ends it and all its processes."""
        os.close(self._life)
        os.waitpid(self._pid, 0)
        os.close(self.pidfd)


class Recorder:
    """Pytest's plugin that writes down what becomes of each test."""

    def __init__(self, result: Path) -> None:
        self._result = result

    def pytest_configure(self) -> None:
        """Our plugins are chosen: a pytest that a test starts has its own."""
        os.environ.pop(NO_OTHER_PLUGINS, None)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _note(self._result, "begun", test=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        _note(self._result, report.outcome, test=report.nodeid, seconds=report.duration)
        if report.failed:
            print(report.longreprtext, flush=True)
            os._exit(1)


def _note(result: Path, what: str, **more: Any) -> None:
    with result.open("a") as file:
        file.write(json.dumps({"is": what, **more}) + "\n")


def _warden(tree: Tree, tests: Sequence[str], limit_s: float, life: int) -> None:
    """Never returns."""
    try:
        os.setsid()  # Ctrl-C is for who asked, and ends us through `life`
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pid = os.fork()
        if pid == 0:
            os.close(life)
            _pytest(tree, tests)
        ended = os.pidfd_open(pid)
        ready: list[int] = []
        size, until_s = -1, 0.0
        while not ready and (size != tree.result.stat().st_size or time.monotonic() < until_s):
            if size != tree.result.stat().st_size:
                size, until_s = tree.result.stat().st_size, time.monotonic() + limit_s
            ready, _, _ = select.select([ended, life], [], [], LOOK_S)
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            names = {0: "passed", 1: "failed"}
            _note(
                tree.result, "end", how=names.get(code, f"killed by {-code}" if code < 0 else "not collected")
            )
        else:
            _note(tree.result, "end", how="hung")
        _end_all()
    finally:
        os._exit(0)


def _end_all() -> None:
    """Kills our children until there are none: who loses a parent on the way becomes ours."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while found := children.read_text().split():
        for pid in map(int, found):
            os.kill(pid, signal.SIGKILL)  # ours until we have waited for it
            os.waitpid(pid, 0)


def _pytest(tree: Tree, tests: Sequence[str]) -> None:
    """Never returns."""
    code = 3
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(tree.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for to, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, to)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.closerange(3, 256)
        environment = tree.environment() | {NO_OTHER_PLUGINS: "1"}  # of ours, before that is cleared
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(tree.path)
        tempfile.tempdir = None  # it is looked up once, and was by what is imported
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        sys.path[:] = [str(tree.path), *(entry for entry in sys.path if _is_foreign(entry))]
        import pytest  # noqa: PLC0415

        options = ["-p", "no:cacheprovider", "--timeout=0", "--tb=short", *tests]
        recorder = Recorder(tree.result)
        code = pytest.main(options, plugins=[*(sys.modules[name] for name in PLUGINS), recorder])
        print("exit code", code, flush=True)
    except BaseException:  # noqa: BLE001 - it is in the log, and no test was run
        traceback.print_exc()
    finally:
        os._exit(int(code))


def _is_foreign(entry: str) -> bool:
    """Whether a place of modules is not the repository that we were started in."""
    return bool(entry) and not (Path(entry) / "ps_wire").is_dir()
