"""What `make fuzz` runs, once and in small: so it can be run, and sees what it is to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fuzz import check_log, fuzz

pytestmark = pytest.mark.integration


def test_a_server_stands_a_portion_of_frames_and_messages_and_ends(tmp_path: Path) -> None:
    """A job beside them has its bytes, memory is as before, and SIGTERM ends the server."""
    said: list[str] = []
    fuzz(tmp_path, 3, [0], size=160, say=said.append)
    assert "seed 3: 160 control messages and frames" in said
    assert "stopped" in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize("text", ["Traceback (most recent call last):", "\x1b[2J", "x" * (5 << 20)])
def test_a_log_that_has_a_bug_in_it_is_found(text: str) -> None:
    check_log("2026-11-22 INFO serving", 1000)
    with pytest.raises(AssertionError):
        check_log(f"2026-11-22 INFO serving\n{text}", 1000)
