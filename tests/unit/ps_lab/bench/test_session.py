"""The processes of a bench: they answer, or the run ends with a named error; none of them stays."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_lab.bench.session import ProcessPlan, Session
from ps_lab.errors import BenchFailed, Interrupted, ProcessFailed
from tests.until import LIMIT_S

TAKES_TURNS = "from ps_lab.bench.turns import read_configuration, take_turns\nread_configuration()\n"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a process that holds another's output open: all of it comes before the end."""
    monkeypatch.setattr("ps_lab.cluster.child.DRAIN_S", LIMIT_S)


@pytest.fixture(name="shown")
def _shown() -> list[tuple[str, str]]:
    return []


@pytest.fixture(name="session")
def _session(shown: list[tuple[str, str]]) -> Iterator[Session]:
    """Without servers: they are a cluster's affair."""
    with Session(num_servers=0, on_line=lambda *line: shown.append(line)) as made:
        yield made
    assert all(child.exit_code is not None for child in made._children)


def plan(code: str, name: str = "peer 0", *, takes_turns: bool = True) -> ProcessPlan:
    command = (sys.executable, "-c", code)
    return ProcessPlan(name=name, command=command, configuration={}, takes_turns=takes_turns)


def test_a_round_lasts_from_the_first_begin_to_the_last_end(session: Session) -> None:
    fixed = (
        "from ps_lab.bench import turns\nturns.read_configuration()\nturns.answer()\n"
        "import sys\nfor _ in sys.stdin: turns.answer(begin_s={}, end_s={})"
    )
    party = session.start(
        "peer",
        [plan(fixed.format(10.0, 11.0), "peer 0"), plan(fixed.format(10.5, 13.0), "peer 1")],
        limit_s=LIMIT_S,
    )
    session.wait_ready(limit_s=LIMIT_S)
    assert [party.round().seconds for _ in range(2)] == [3.0, 3.0]


def test_who_serves_is_not_told_and_its_cpu_seconds_count(session: Session, tmp_path: Path) -> None:
    """It works while a turn lasts, and the turn until it has: a busy host may not let it run for a while."""
    asked, served = tmp_path / "asked", tmp_path / "served"
    serves = (
        "import time\nfrom pathlib import Path\nfrom ps_lab.bench.turns import answer\nanswer()\n"
        f"while not Path({str(asked)!r}).exists(): time.sleep(0.01)\n"
        "begin_s = time.process_time()\nwhile time.process_time() < begin_s + 0.2: pass\n"
        f"Path({str(served)!r}).touch()\ntime.sleep({LIMIT_S})"
    )
    works = (
        f"{TAKES_TURNS}import time\nfrom pathlib import Path\ndef turn():\n    Path({str(asked)!r}).touch()\n"
        f"    while not Path({str(served)!r}).exists(): time.sleep(0.01)\ntake_turns(turn, ranks=1)"
    )
    party = session.start("peer", [plan(serves, "s", takes_turns=False), plan(works, "w")], limit_s=LIMIT_S)
    assert session.wait_ready(limit_s=LIMIT_S)["w"] == {"ready": True, "ranks": 1}
    done = party.round()
    assert done.seconds >= 0.2
    # What the system tells is cut to ticks of 10 ms, of user and of system.
    assert done.cpu_s is None or done.cpu_s >= 0.17


def test_a_process_that_does_not_answer_is_named(session: Session, shown: list[tuple[str, str]]) -> None:
    session.start("peer", [plan("print('thinking', flush=True)\ninput()\ninput()")], limit_s=LIMIT_S)
    with pytest.raises(BenchFailed, match="peer 0 did not answer within 1 s"):
        session.wait_ready(limit_s=1.0)
    assert set(shown) <= {("peer 0", "thinking")}


def test_a_process_that_ends_ends_the_run_and_its_last_lines_are_shown(
    session: Session, shown: list[tuple[str, str]]
) -> None:
    session.start("peer", [plan("print('no memory')\nraise SystemExit(3)")], limit_s=LIMIT_S)
    with pytest.raises(ProcessFailed, match="peer 0 exited with code 3"):
        session.wait_ready(limit_s=LIMIT_S)
    assert shown == [("peer 0", "no memory")]


def test_a_process_that_ends_well_ends_too_early(session: Session) -> None:
    party = session.start("peer", [plan(TAKES_TURNS + "take_turns(exit)")], limit_s=LIMIT_S)
    session.wait_ready(limit_s=LIMIT_S)
    with pytest.raises(ProcessFailed, match="peer 0 ended before the bench was over"):
        party.round()


def test_a_signal_ends_the_run(session: Session) -> None:
    session.start("peer", [plan("input()\ninput()")], limit_s=LIMIT_S)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted, match="SIGTERM"):
        session.wait_ready(limit_s=LIMIT_S)
