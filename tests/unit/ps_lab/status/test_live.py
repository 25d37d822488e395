"""`ps-lab status --watch`: drawn again until Ctrl-C."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from ps_lab.status.live import EVERY_S, watch
from ps_lab.status.status import Status
from ps_wire.errors import ServerUnreachable, TokenRefused, UsageError
from tests.unit.ps_lab.made import made_job, made_status

ALTERNATE, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=40, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Looks:
    """What each look gives, in turn; then comes Ctrl-C, in a pause."""

    def __init__(self, console: Console, *answers: Status | Exception) -> None:
        self.screens: list[str] = []
        self._console = console
        self._answers: Iterator[Status | Exception] = iter(answers)
        self._left = len(answers)

    def look(self) -> Status:
        self._left -= 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pause(self, seconds: float) -> None:
        assert seconds == EVERY_S
        self.screens.append(written(self._console))
        if not self._left:
            raise KeyboardInterrupt


def test_each_look_is_drawn_and_ctrl_c_gives_the_terminal_back() -> None:
    """The first at once; and what is drawn at the end of a watch leaves no trace, and no hidden cursor."""
    console = terminal()
    looks = Looks(console, made_status(made_job(state="waiting")), made_status(made_job(state="running")))
    with pytest.raises(KeyboardInterrupt):
        watch(console, looks.look, pause=looks.pause)
    first, second = looks.screens
    assert first.startswith(ALTERNATE)
    assert "waiting" in first
    assert "running" not in first
    assert "running" in second.removeprefix(first)
    assert BACK in written(console).removeprefix(second)
    assert CURSOR in written(console).removeprefix(second)


def test_servers_that_do_not_answer_for_a_while_are_waited_for() -> None:
    """The last figures stay, below why there are no newer ones."""
    console = terminal()
    gone = ServerUnreachable("127.0.0.1:1 does not answer")
    looks = Looks(console, made_status(made_job(name="first")), gone, made_status(made_job(name="second")))
    with pytest.raises(KeyboardInterrupt):
        watch(console, looks.look, pause=looks.pause)
    _, without, again = looks.screens
    assert "ServerUnreachable: 127.0.0.1:1 does not answer; trying on" in without
    assert without.rindex("first") > without.rindex("trying on")
    assert "second" in again


def test_servers_that_refuse_or_do_not_answer_at_all_end_the_watch() -> None:
    console = terminal()
    with pytest.raises(ServerUnreachable):
        watch(console, Looks(console, ServerUnreachable("nobody")).look)
    assert written(console) == ""
    looks = Looks(console, made_status(), TokenRefused("changed"))
    with pytest.raises(TokenRefused):
        watch(console, looks.look, pause=looks.pause)
    assert BACK in written(console)


def test_where_nothing_can_be_drawn_again_it_is_refused() -> None:
    with pytest.raises(UsageError, match="stdout is none"):
        watch(Console(file=io.StringIO()), made_status)
