"""Looks that are repeated: their pace, servers that are away, and Ctrl-C."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from ps_lab.top.live import LEAST_PAUSE_S, MOST_PAUSE_S, pause_s, show, views
from ps_wire.errors import ServerUnreachable, TokenRefused, UsageError
from tests.unit.ps_lab.made import made_job, made_status

ALTERNATE, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def looks(*answers):
    left = iter(answers)

    def look():
        answer = next(left)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return look


def test_servers_that_are_away_are_waited_for_and_the_last_figures_stay():
    away = ServerUnreachable("127.0.0.1:1 does not answer", address="127.0.0.1:1")
    look = looks(made_status(made_job()), away, made_status(made_job(state="ended")))
    first, second, third = itertools.islice(views(look, "here", pause=lambda _: None), 3)
    assert (first.trouble, third.trouble) == ("", "")
    assert "does not answer" in second.trouble
    assert second.jobs == first.jobs
    assert third.jobs[0].state == "ended"


def test_a_refusal_ends_it():
    moments = views(looks(made_status(), TokenRefused("no")), "here", pause=lambda _: None)
    next(moments)
    with pytest.raises(TokenRefused):
        next(moments)


def test_the_pause_is_a_hundred_looks_long_within_bounds():
    """A server that works for 60 ms on its answer is asked every six seconds."""
    assert pause_s(0.001) == LEAST_PAUSE_S
    assert pause_s(0.06) == pytest.approx(6.0)
    assert pause_s(5.0) == MOST_PAUSE_S
    clock, pauses = [0.0], []

    def look():
        clock[0] += 0.02
        return made_status()

    moments = views(look, "", pause=pauses.append, now_s=lambda: clock[0])
    next(moments)
    clock[0] += 5.0  # who draws takes its time, which says nothing of servers
    next(moments)
    assert pauses == [pytest.approx(2.0)]


def test_ctrl_c_gives_the_terminal_back():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40, color_system=None)
    look = looks(made_status(made_job(name="mine")), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        show(console, views(look, "here", pause=lambda _: None))
    written = console.file.getvalue()
    assert written.startswith(ALTERNATE)
    assert "mine" in written
    assert written.index(BACK) > written.index("mine")
    assert CURSOR in written[written.index("mine") :]


def test_without_a_terminal_the_way_out_is_named():
    with pytest.raises(UsageError, match="--json"):
        show(Console(file=io.StringIO()), views(looks(), "here"))
