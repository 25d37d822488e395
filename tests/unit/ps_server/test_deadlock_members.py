"""Law 17 with members that come and go, cuts and backup workers: every reachable state is visited.

In none is everybody stuck, laws 5, 8, 12 and 14 hold at every transition, and at every end what an evicted
incarnation pushed counts everywhere, or was dropped, or is counted as mixed. Each search says how many states
and ends it found at least: it cannot shrink unseen. Of two states that differ in which shard is which, one is
counted. `HYPOTHESIS_PROFILE=thorough` searches the larger ones, too.
"""

from __future__ import annotations

import os

import pytest

from ps_wire.consistency import BSP, SSP

from .search_world import Search

thorough = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="minutes: HYPOTHESIS_PROFILE=thorough"
)


def visits(search: Search, states: int, ends: int, *reached: str) -> None:
    search.run()
    assert search.states >= states, search.states
    assert search.ends >= ends, search.ends
    assert search.reached >= {"applied", "pulled", "ack", *reached}, search.reached


@pytest.mark.parametrize(
    ("model", "steps", "states", "ends"),
    [
        (BSP(), (2, 1), 1671, 38),
        (SSP(1), (2, 1), 2203, 36),
        (SSP(2), (3, 1), 3825, 55),
        (BSP(), (1, 1, 1), 8721, 22),
        (SSP(1), (1, 1, 1), 14019, 31),
    ],
    ids=str,
)
def test_law_17_a_worker_that_dies_blocks_nobody(model, steps, states, ends):
    """Wherever its last pushes have come to."""
    visits(Search(model=model, steps=steps, deaths=1), states, ends, "mixed")


@pytest.mark.parametrize(
    ("model", "deaths", "states", "ends"),
    [(BSP(), 0, 1517, 3), (SSP(0), 0, 2074, 3), (BSP(), 1, 30229, 116)],
    ids=str,
)
def test_law_17_a_worker_that_joins_in_mid_run_blocks_nobody(model, deaths, states, ends):
    """At whichever moment, also after all others have left, or while one dies."""
    visits(Search(model=model, steps=(2, 1), late=(1,), deaths=deaths), states, ends)


@pytest.mark.parametrize(("model", "states", "ends"), [(BSP(), 2560, 7), (SSP(1), 5030, 16)], ids=str)
def test_law_17_a_worker_that_pauses_for_longer_than_its_lease_comes_back(model, states, ends):
    """Whatever of it arrives late is refused behind the fence."""
    visits(Search(model=model, steps=(1, 2), pauses=1), states, ends, "mixed")


@pytest.mark.parametrize(
    ("model", "faults", "states", "ends"),
    [
        (BSP(), {}, 3188, 2),
        (SSP(1), {}, 7600, 2),
        (SSP(1), {"breaks": 1}, 8345, 4),
        (BSP(), {"deaths": 1}, 35016, 94),
    ],
    ids=str,
)
def test_law_17_a_cut_blocks_nobody_and_comes_about(model, faults, states, ends):
    """Without its time limit, whoever leaves, dies or sends again meanwhile; in bsp it has one version."""
    steps = (2, 1) if faults else (2, 2)
    visits(Search(model=model, steps=steps, cuts=1, **faults), states, ends, "held", "sent", "ended")


@pytest.mark.parametrize(
    ("steps", "events", "states", "ends"),
    [
        ((2, 1), {"abstains": frozenset({(0, 0), (1, 0)})}, 8194, 4),
        ((2, 1), {"breaks": 1}, 25572, 8),
        ((1,), {"late": (1,)}, 6044, 12),
        ((1, 1), {"deaths": 1}, 29703, 68),
        ((2, 1), {"losses": 1}, 24414, 18),
        ((2, 1), {"late": (1,), "prompt": True}, 21178, 37),
        ((1, 1, 1), {"prompt": True}, 3785, 27),
        ((2, 2), {"prompt": True}, 3060, 14),
        ((1, 2), {"pauses": 1, "prompt": True}, 16497, 32),
        ((1, 1), {"cuts": 1, "prompt": True}, 5296, 14),
    ],
    ids=str,
)
def test_law_17_backup_workers_block_nobody_and_are_not_blocked(steps, events, states, ends):
    """Every step takes one set on all shards, and what is pulled has one version, however late one is."""
    visits(Search(model=BSP(1), steps=steps, **events), states, ends, "report", "closed")


@thorough
@pytest.mark.parametrize(
    ("model", "steps", "events", "states", "ends"),
    [
        (BSP(1), (2, 2), {}, 74530, 18),
        (BSP(1), (1, 1), {"pauses": 1}, 44601, 40),
        (BSP(1), (2, 1), {"deaths": 1}, 126703, 187),
        (BSP(1), (1, 1), {"late": (1,)}, 94796, 49),
        (BSP(1), (1, 2), {"pauses": 1}, 131251, 34),
        (BSP(1), (2, 1), {"cuts": 1}, 170188, 8),
        (BSP(1), (2, 1), {"cuts": 1, "deaths": 1, "prompt": True}, 247802, 474),
        (BSP(1), (1, 1, 1), {}, 55766, 36),
        (BSP(2), (1, 1, 1), {}, 251126, 48),
        (BSP(), (1, 1), {"cuts": 1, "pauses": 1}, 21056, 12),
        (SSP(0), (1, 1), {"cuts": 1, "pauses": 1}, 28374, 20),
        (SSP(1), (2, 1), {"cuts": 1, "deaths": 1}, 55314, 138),
        (SSP(1), (2, 1), {"cuts": 1, "late": (1,)}, 88912, 6),
    ],
    ids=str,
)
def test_law_17_in_larger_jobs(model, steps, events, states, ends):
    """As above."""
    visits(Search(model=model, steps=steps, **events), states, ends)
