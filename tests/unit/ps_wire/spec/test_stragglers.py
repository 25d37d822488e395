"""Stragglers as typed: parsed once, printed back the same, and the same draws for everybody."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import UsageError
from ps_wire.spec.stragglers import (
    AS_EVER,
    KINDS,
    VALID,
    Bursty,
    Constant,
    Crash,
    Exponential,
    Pause,
    SlowLink,
    Slowness,
    StragglerProfile,
    Transient,
    parse,
    uniform,
)

FACTORS = st.floats(1.0, 100.0)
CHANCES = st.floats(0.0, 0.9)
WORKERS = st.lists(st.integers(0, 999), max_size=3, unique=True).map(tuple)
STEPS = st.integers(0, 10**6)
PARTS = (
    st.builds(Constant, factor=FACTORS, workers=WORKERS)
    | st.builds(Transient, probability=CHANCES, factor=FACTORS, workers=WORKERS)
    | st.builds(Exponential, mean=st.floats(0.0, 10.0), workers=WORKERS)
    | st.builds(Bursty, probability=CHANCES, length=st.floats(10.0, 50.0), factor=FACTORS, workers=WORKERS)
    | st.builds(Pause, step=STEPS, seconds=st.floats(0.0, 100.0), workers=WORKERS)
    | st.builds(Crash, step=STEPS, restart_s=st.floats(0.0, 100.0) | st.just(math.inf), workers=WORKERS)
    | st.builds(SlowLink, factor=FACTORS, workers=WORKERS)
)
PROFILES = st.builds(
    StragglerProfile, parts=st.lists(PARTS, max_size=3).map(tuple), seed=st.integers(0, 10**9 - 1)
)


@given(PROFILES)
def test_what_is_printed_is_parsed(profile):
    """parse(str(profile)) == profile."""
    assert parse(str(profile)) == profile


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("", StragglerProfile()),
        ("none", StragglerProfile()),
        ("constant:f=4", StragglerProfile(parts=(Constant(factor=4.0),))),
        ("constant:f=4,worker=all", StragglerProfile(parts=(Constant(factor=4.0, workers=()),))),
        (
            " transient:p=0.1, f=4 ; seed=7",
            StragglerProfile(parts=(Transient(probability=0.1, factor=4),), seed=7),
        ),
        ("exponential:mean=.5,worker=1+2", StragglerProfile(parts=(Exponential(mean=0.5, workers=(1, 2)),))),
        (
            "bursty:p=0.2,length=10,f=3",
            StragglerProfile(parts=(Bursty(probability=0.2, length=10, factor=3),)),
        ),
        ("pause:step=3,s=1.5", StragglerProfile(parts=(Pause(step=3, seconds=1.5),))),
        ("crash:step=3", StragglerProfile(parts=(Crash(step=3),))),
        (
            "crash:step=3,restart=2;slow_link:f=8",
            StragglerProfile(parts=(Crash(step=3, restart_s=2.0), SlowLink(factor=8.0))),
        ),
    ],
)
def test_valid_profiles(text, profile):
    """Every kind, with what may be left out."""
    assert parse(text) == profile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transeint:p=1,f=2", "did you mean transient"),
        ("slow", "valid are: none, constant:f=F"),
        ("transient:p=1.5,f=4", "transient: p must be from 0 to 1, got 1.5"),
        ("transient:p=nan,f=4", "transient: p must be from 0 to 1, got nan"),
        ("constant:f=0.5", "constant: f must be from 1 to 1e[+]06: a worker can only be slowed, got 0.5"),
        ("constant:f=inf", "constant: f must be from 1"),
        ("constant:f=fast", "constant: f must be a number, got 'fast'"),
        ("constant", "constant: f= is missing"),
        ("constant:f=2,f=3", "constant: f is given twice"),
        ("constant:g=2", "constant: 'g=2' is none of f=, worker="),
        ("constant:f", "constant: 'f' is none of"),
        ("constant:f=2,worker=-1", "constant: worker must be a whole number, or all, got '-1'"),
        ("bursty:p=1,length=3,f=2", "bursty: p must be >= 0 and < 1"),
        ("bursty:p=0.5,length=1.5,f=2", "bursty: length must be from 2, that of independent steps"),
        ("bursty:p=0.5,length=1e9,f=2", "bursty: length must be from 2"),
        ("pause:step=1.5,s=1", "pause: step must be a whole number, got '1.5'"),
        ("pause:step=1,s=-1", "pause: s must be from 0"),
        ("crash:step=1,restart=-1", "crash: restart must be from 0"),
        ("exponential:mean=-1", "exponential: mean must be from 0"),
        ("seed=x", "seed must be a whole number, got 'x'"),
        (";".join(["constant:f=2"] * 17), "at most 16 parts, got 17"),
    ],
)
def test_what_makes_no_sense_is_refused(text, message):
    """The error names the value and what is valid."""
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_draws_are_the_same_everywhere():
    """Recorded once: another machine, or version, that draws otherwise would compare other stragglers."""
    drawn = [uniform(7, 0, worker, step) for worker, step in ((0, 0), (0, 1), (3, 999_999))]
    assert drawn == [0.17173719855229574, 0.03409929747419027, 0.29635861829768406]


def test_draws_do_not_repeat_over_workers_steps_seeds_and_parts():
    """Neighbours in each of the four are independent: another one is another draw."""
    places = [
        (seed, part, worker, step)
        for seed in range(6)
        for part in range(6)
        for worker in range(6)
        for step in range(6)
    ]
    assert len({uniform(*place) for place in places}) == len(places)


def test_draws_are_uniform():
    """Mean and variance of 20,000 draws are those of a uniform one, within 5 standard errors."""
    drawn = [uniform(1, 2, worker, step) for worker in range(20) for step in range(1000)]
    assert all(0.0 <= it < 1.0 for it in drawn)
    assert statistics.fmean(drawn) == pytest.approx(0.5, abs=5 / math.sqrt(12 * len(drawn)))
    assert statistics.pvariance(drawn) == pytest.approx(1 / 12, rel=0.05)


def factors(text: str, *, workers: int = 10, steps: int = 2000) -> list[float]:
    profile = parse(text)
    return [profile.at(worker, step).factor for worker in range(workers) for step in range(steps)]


def test_transient_steps_come_as_often_as_said():
    """A share p of the steps is slow, by f."""
    found = factors("transient:p=0.1,f=4;seed=3")
    assert set(found) == {1.0, 4.0}
    assert found.count(4.0) / len(found) == pytest.approx(0.1, abs=0.01)


def test_exponential_steps_have_their_mean_and_deviation():
    """1 + X, with X exponential: mean and standard deviation of X are the same."""
    found = factors("exponential:mean=0.5;seed=3")
    assert min(found) >= 1.0
    assert statistics.fmean(found) == pytest.approx(1.5, rel=0.02)
    assert statistics.pstdev(found) == pytest.approx(0.5, rel=0.05)


def test_bursts_have_their_share_and_length():
    """A share p of the steps is slow, from the first on, in bursts of `length` steps on average."""
    profile = parse("bursty:p=0.2,length=10,f=3;seed=5")
    assert statistics.fmean(profile.at(worker, 0).factor > 1 for worker in range(4000)) == pytest.approx(
        0.2, abs=0.03
    )
    slow = [[profile.at(worker, step).factor > 1 for step in range(4000)] for worker in range(10)]
    begun = sum(now and not before for row in slow for before, now in pairwise(row))
    assert sum(map(sum, slow)) / 40_000 == pytest.approx(0.2, abs=0.02)
    assert sum(map(sum, slow)) / begun == pytest.approx(10, rel=0.1)


def test_the_shortest_bursts_are_independent_steps():
    """A length of 1 / (1 - p) is that of slow steps that know nothing of each other."""
    found = [it > 1 for it in factors("bursty:p=0.5,length=2,f=3", workers=1, steps=20_000)]
    after = [now for before, now in pairwise(found) if before]
    assert statistics.fmean(after) == pytest.approx(0.5, abs=0.02)


def test_a_profile_is_about_its_workers_and_its_step():
    """Others, and other steps, are as ever."""
    pause = parse("pause:step=3,s=1.5,worker=1+2")
    assert pause.at(1, 3) == pause.at(2, 3) == Slowness(pause_s=1.5)
    assert pause.at(0, 3) is pause.at(1, 2) is AS_EVER
    crash = parse("crash:step=3,worker=all")
    assert crash.at(9, 3) == Slowness(restart_s=math.inf)
    assert parse("constant:f=4").at(1, 0) is AS_EVER


def test_parts_come_together():
    """Factors are multiplied, pauses added, and the first crash counts."""
    profile = parse(
        "constant:f=2;constant:f=3;slow_link:f=5;pause:step=1,s=1;pause:step=1,s=2;crash:step=1,restart=9"
    )
    assert profile.at(0, 1) == Slowness(factor=6.0, link_factor=5.0, pause_s=3.0, restart_s=9.0)


def test_parts_of_one_kind_draw_for_themselves():
    """Two transient parts are not slow in the same steps."""
    profile = parse("transient:p=0.5,f=2;transient:p=0.5,f=3")
    assert {profile.at(0, step).factor for step in range(100)} == {1.0, 2.0, 3.0, 6.0}


def test_the_list_of_what_is_valid_has_every_kind():
    """A kind that no error names would not be found."""
    assert all(f"{name}:" in VALID for name in KINDS)
