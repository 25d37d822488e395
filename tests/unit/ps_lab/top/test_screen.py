"""What `ps-lab top` draws fits 100 columns, says what a person asks for, and is no markup."""

from __future__ import annotations

import io

from rich.console import Console

from ps_lab.status.status import Snapshot
from ps_lab.top.screen import BARS, MOST_LANES, TRACK, drawn, sparkline, track
from ps_lab.top.view import Film
from tests.unit.ps_lab.made import made_job, made_status, made_table, made_table_worker, made_worker


def text_of(*jobs, width=100, trouble=""):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    film = Film("127.0.0.1:1")
    film.add(made_status(), 0.0)
    view = film.add(made_status(*jobs), 1.0)
    for part in drawn(film.trouble(trouble) if trouble else view):
        console.print(part)
    return console.file.getvalue()


def a_job(workers=2, **given):
    values = {
        "workers": tuple(
            made_worker(it, step=10 + it, metrics={"loss": 0.25}, waits="waiting for worker 0" * (it > 0))
            for it in range(workers)
        ),
        "tables": (
            made_table(
                tau_counts={0: 3, 4: 1},
                workers=tuple(made_table_worker(it, min_clock=10 + it) for it in range(workers)),
            ),
        ),
        "happened": ("2026-11-22T10:00:00Z event=join worker=0",),
        "snapshot": Snapshot(age_s=12.0, step=5, duration_s=1.0, nbytes=100),
    }
    return made_job(**values | given)


def test_everything_that_is_asked_for_is_there():
    shown = text_of(a_job())
    for word in ("ssp:3", "waiting for worker 0", "0.25", "staleness", "largest 4", "event=join"):
        assert word in shown
    assert "snapshot 12.0 s ago" in shown
    assert "2 KiB" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_of_many_workers_those_furthest_behind_are_shown():
    shown = text_of(a_job(workers=MOST_LANES + 5))
    assert "5 more" in shown
    assert " 10 " in shown
    assert f" {10 + MOST_LANES + 4} " not in shown


def test_trouble_is_said_above_the_last_figures():
    shown = text_of(a_job(), trouble="127.0.0.1:1 does not answer")
    assert shown.index("does not answer") < shown.index("digits")


def test_what_a_peer_says_is_no_markup():
    shown = text_of(a_job(happened=("[red]x[/red]\x1b[2J",)))
    assert "[red]x[/red]" in shown
    assert "\x1b[2J" not in shown


def test_a_sparkline_reaches_from_zero_to_the_largest():
    assert sparkline([0, 1, 2]) == BARS[0] + BARS[4] + BARS[-1]
    assert sparkline([0, 0]) == BARS[0] * 2
    assert sparkline([]) == ""


def test_a_track_has_the_slowest_left_and_the_fastest_right():
    assert [track(clock, 5, 9).index("●") for clock in (5, 9)] == [0, TRACK - 1]
    assert track(7, 7, 7).index("●") == 0
    assert all(len(track(clock, 5, 9)) == TRACK for clock in range(5, 10))
