"""The processes of a bench: they answer, or the run ends with a named error; none of them stays."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

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


def test_who_serves_is_not_told_and_its_cpu_seconds_count(session: Session) -> None:
    party = session.start(
        "peer",
        [
            plan("from ps_lab.bench.turns import answer\nanswer()\nwhile True: pass", "s", takes_turns=False),
            plan(TAKES_TURNS + "import time\ntake_turns(lambda: time.sleep(0.3), ranks=1)", "w"),
        ],
        limit_s=LIMIT_S,
    )
    assert session.wait_ready(limit_s=LIMIT_S)["w"] == {"ready": True, "ranks": 1}
    done = party.round()
    assert done.seconds >= 0.3
    assert done.cpu_s is None or done.cpu_s > 0


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
