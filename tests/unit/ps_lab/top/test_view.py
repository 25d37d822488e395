"""Views are made of statuses: rates of the last seconds, staleness since the look before."""

from __future__ import annotations

from ps_lab.top.view import MOST_POINTS, Film
from tests.unit.ps_lab.made import made_job, made_status, made_table, made_table_worker, made_worker


def job(step=0, tau=None, **given):
    values = {
        "workers": (
            made_worker(0, step=step, samples=10 * step, waited_s=0.5 * step, metrics={"loss": 1.5}),
            made_worker(1, step=0, waits="waiting for worker 0"),
            made_worker(2, state="left"),
        ),
        "tables": (
            made_table(
                max_version=step,
                tau_counts=tau or {},
                workers=(
                    made_table_worker(0, min_clock=step, max_clock=step),
                    made_table_worker(1, min_clock=0, max_clock=1),
                    made_table_worker(2, min_clock=0, member=False),
                ),
            ),
        ),
    }
    return made_job(**values | given)


def test_a_lane_has_clock_gap_rate_loss_and_what_is_waited_for():
    film = Film("here")
    film.add(made_status(job(0)), 0.0)
    (view,) = film.add(made_status(job(4)), 2.0).jobs
    first, second = view.lanes
    assert (first.worker, first.clock, first.gap, first.loss, first.waits) == (0, 4, 4, 1.5, "")
    assert (first.steps_per_s, first.waits_share) == (2.0, 1.0)
    assert (second.clock, second.gap, second.waits) == (0, 0, "waiting for worker 0")
    assert (view.updates_per_s, view.samples_per_s) == (2.0, 20.0)


def test_who_has_gone_has_no_lane():
    (view,) = Film("here").add(made_status(job()), 0.0).jobs
    assert [lane.worker for lane in view.lanes] == [0, 1]


def test_staleness_is_that_of_the_pushes_since_the_look_before():
    film = Film("here")
    seen = [
        film.add(made_status(job(tau=tau)), 1.0) for tau in ({0: 4}, {0: 4, 6: 2}, {0: 4, 6: 2}, {0: 8, 6: 2})
    ]
    assert [view.jobs[0].staleness for view in seen] == [(0.0,), (0.0, 6.0), (0.0, 6.0), (0.0, 6.0, 0.0)]
    assert seen[-1].jobs[0].worst == 6


def test_a_job_that_went_back_begins_anew():
    film = Film("here")
    film.add(made_status(job(9, tau={3: 9})), 0.0)
    (view,) = film.add(made_status(job(2, tau={3: 2})), 1.0).jobs
    assert view.updates_per_s is None
    assert view.staleness == (3.0, 3.0)


def test_a_sparkline_keeps_the_last_points():
    film = Film("here")
    for count in range(1, MOST_POINTS + 10):
        view = film.add(made_status(job(tau={count: 1})), float(count))
    assert len(view.jobs[0].staleness) == MOST_POINTS


def test_trouble_keeps_the_last_figures():
    film = Film("here")
    before = film.add(made_status(job(3)), 0.0)
    view = film.trouble("gone")
    assert (view.jobs, view.trouble) == (before.jobs, "gone")


def test_a_view_is_an_object_of_json():
    view = Film("here").add(made_status(job(1)), 0.0)
    assert view.to_json()["jobs"][0]["lanes"][0]["clock"] == 1
    assert view.to_json()["shards"][0]["shard"]["address"] == "127.0.0.1:1"
