"""Law 17 with members that come and go, cuts and backup workers: every reachable state is visited.

In none is everybody stuck, laws 5, 8, 12 and 14 hold at every transition, and at every end what an evicted
incarnation pushed counts everywhere, or was dropped, or is counted as mixed. Each search says how many states
and ends it found at least: it cannot shrink unseen. Of two states that differ in which shard is which, one is
counted. `HYPOTHESIS_PROFILE=thorough` searches the larger ones, too.
"""

from __future__ import annotations

import os

import pytest

from ps_wire.spec.consistency import BSP, SSP
from tests.search.search import Search

thorough = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="minutes: HYPOTHESIS_PROFILE=thorough"
)


def visits(search: Search, states: int, ends: int, *reached: str) -> None:
    search.run()
    assert search.states >= states, search.states
    assert search.ends >= ends, search.ends
    assert search.reached >= {"applied", "pulled", "ack", *reached}, search.reached


@pytest.mark.parametrize(
    ("model", "steps", "breaks", "states", "ends"),
    [
        (BSP(), (1, 3, 2), 0, 1022, 1),
        (SSP(1), (1, 3, 2), 0, 5892, 1),
        (BSP(), (2, 3), 1, 571, 2),
        (SSP(1), (2, 3), 1, 1376, 2),
    ],
    ids=str,
)
def test_law_17_shards_never_block_each_other(model, steps, breaks, states, ends):
    """Workers with unequal batches on two shards that progress in any order, and lose connections."""
    visits(Search(model=model, steps=steps, breaks=breaks), states, ends)


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
    ("model", "steps", "deaths", "states", "ends"),
    [(BSP(), (2, 1), 0, 1517, 3), (SSP(0), (2, 1), 0, 2074, 3), (BSP(), (1, 1), 1, 13445, 47)],
    ids=str,
)
def test_law_17_a_worker_that_joins_in_mid_run_blocks_nobody(model, steps, deaths, states, ends):
    """At whichever moment, also after all others have left, or while one dies."""
    visits(Search(model=model, steps=steps, late=(1,), deaths=deaths), states, ends)


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
        ((2, 1), {"breaks": 1, "prompt": True}, 2172, 8),
        ((1,), {"late": (1,)}, 5736, 12),
        ((1, 1), {"deaths": 1}, 22837, 68),
        ((2, 1), {"losses": 1, "prompt": True}, 1902, 10),
        ((2, 1), {"late": (1,), "prompt": True}, 13505, 34),
        ((1, 1), {"pauses": 1, "losses": 1, "prompt": True}, 10613, 90),
        ((1, 1, 1), {"prompt": True}, 3785, 27),
        ((2, 2), {"prompt": True}, 3060, 14),
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
        (BSP(1), (3,), {"late": (1,), "losses": 1}, 122661, 116),
        (BSP(1), (2, 1), {"late": (1,), "losses": 1, "prompt": True}, 40166, 98),
        (BSP(), (2, 1), {"deaths": 1, "late": (1,)}, 30229, 116),
        (BSP(1), (2, 1), {"breaks": 1}, 25572, 8),
        (BSP(1), (2, 1), {"losses": 1}, 31530, 20),
        (BSP(1), (1, 2), {"pauses": 1, "losses": 1, "prompt": True}, 32542, 80),
        (BSP(1), (1, 1), {"pauses": 1}, 34951, 42),
        (BSP(1), (2, 1), {"deaths": 1}, 81128, 184),
        (BSP(1), (1, 1), {"late": (1,)}, 86380, 43),
        (BSP(1), (1, 2), {"pauses": 1}, 86525, 33),
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
