"""Rules of the house that a tool can check: imports point one way, types hold, nothing is unpickled."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.until import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).with_name(name)
    command = str(beside) if beside.exists() else shutil.which(name)
    assert command is not None, f"{name} is not installed: make test installs it"
    return subprocess.run(
        [command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize(
    "command",
    [("lint-imports",), ("ruff", "check", "."), ("ruff", "format", "--check", ".")],
    ids=" ".join,
)
def test_the_checkers_are_content(command):
    """Imports point one way, style is the house's; `tests/typing` asks mypy, once for all that it reads."""
    outcome = tool(*command)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


SIGNALS = {
    "ps_lab/cluster/process_handle.py",  # the handle itself
    "ps_worker/process/rank_processes.py",  # its own children, which it has not waited for
    "ps_worker/process/straggling.py",  # a child stops its parent, and looks whether it still is its parent
    "tests/mutants/suite.py",  # faults of it, as text
    "tests/unit/test_house_rules.py",
    "tests/mutants/trial.py: os.kill(pid, signal.SIGKILL)  # ours until we have waited for it",
}


def test_signals_go_to_handles():
    """A number may be another process's by now; only a process that signals itself, or its group, is sure."""
    folders = ("ps_wire", "ps_server", "ps_worker", "ps_lab", "tests", "benchmarks", "examples")
    itself = re.compile(r"os\.kill\(os\.getpid\(\), |os\.killpg\(0, ")
    sends = re.compile(r"\bos\.kill(pg)?\(|signal\.pidfd_send_signal\(|\b(pkill|killall)\b")
    found = [
        (str(path.relative_to(ROOT)), line.strip())
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if sends.search(itself.sub("", line))
    ]
    assert not [f"{name}: {line}" for name, line in found if not {name, f"{name}: {line}"} & SIGNALS]
    assert {name for name, _ in found} >= {entry.partition(":")[0] for entry in SIGNALS}


def test_a_docstring_says_what_is_done_or_given():
    """A headline that begins with "What" has no verb of its own: a reader looks for one in the code."""
    found = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}"
        for folder in ("ps_wire", "ps_server", "ps_worker", "ps_lab")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if path.parent.name != "v1"  # generated
        and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith("What ")
    ]
    assert not found


def test_nothing_is_unpickled():
    """What crosses a process boundary is never executed."""
    forbidden = (
        r"(import|from) c?pickle\b",
        r"\w_object(_list)?\(",  # torch's collectives of objects, which pickle them
        r"allow_pickle|\bmarshal\.|\bshelve\b|\bjoblib\b",
        r"multiprocessing\.(Queue|Pipe|connection|managers)",
        r"(?<!safetensors\.)torch\.load\(",
        r"\bdill\b",
        r"cloudpickle",
        r"\beval\(",
    )
    found = [
        (path.name, word)
        for folder in ("ps_wire", "ps_server", "ps_worker", "ps_lab")
        for path in (ROOT / folder).rglob("*.py")
        for word in forbidden
        if re.search(word, path.read_text()) and "v1" not in path.parts
    ]
    assert not found


STARTS = {"Thread", "Timer", "create_task", "ensure_future", "run_in_executor", "run_coroutine_threadsafe"}
# Who starts threads or tasks otherwise than by `ps_wire.process.watched`: how many, and who sees them end.
SEEN = {
    ("ps_server/shard/transport/grpc_stream.py", "create_task"): (1, "the stream awaits its writing"),
    ("ps_server/coordinator/drops.py", "create_task"): (1, "watched.outcome"),
    ("ps_server/rpc/health.py", "ensure_future"): (2, "the call awaits what it reads, or cancels it"),
    ("ps_server/process/in_process.py", "run_coroutine_threadsafe"): (
        2,
        "whoever calls, or iterates over replies, gets it",
    ),
    ("ps_server/process/server_metrics.py", "run_coroutine_threadsafe"): (1, "the scrape waits for it"),
    ("ps_server/coordinator/readers.py", "create_task"): (1, "the cut awaits its hold"),
    ("ps_server/coordinator/snapshots/attempt.py", "run_in_executor"): (
        1,
        "the snapshot awaits what is written for it",
    ),
    ("ps_server/coordinator/snapshots/scheduler.py", "create_task"): (1, "watched.outcome"),
    ("ps_server/coordinator/snapshots/scheduler.py", "run_in_executor"): (1, "awaited"),
}


def test_no_background_task_ends_unseen():
    """Threads and tasks are made by `ps_wire.process.watched`, or somebody named here sees how they end."""
    found: Counter[tuple[str, str]] = Counter()
    for folder in ("ps_wire", "ps_server", "ps_worker"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    if name in STARTS:
                        found[path.relative_to(ROOT).as_posix(), name] += 1
    counts = {place: count for place, (count, _) in SEEN.items()}
    assert {it: count for it, count in found.items() if it[0] != "ps_wire/process/watched.py"} == counts
