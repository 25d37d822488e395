"""Law 17 with servers that die, stop, come back, or are there twice: all reachable states of small jobs.

On real shards and the real decisions of the coordinator. From each state honest events alone lead to an end
of the job; versions never go back but with a generation; no push is applied twice, none of an incarnation
from before a rollback; what a worker was told is done is on both shards; at an end both hold the same, and
every step of each worker that was not evicted and did not leave. Each search says how many states and ends
it found at least: it cannot shrink unseen. `HYPOTHESIS_PROFILE=thorough` searches the larger ones, too.
"""

from __future__ import annotations

import os

import pytest

from ps_wire.spec.consistency import BSP, SSP
from tests.search.disasters import ServerSearch

thorough = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="minutes: HYPOTHESIS_PROFILE=thorough"
)
BACK = ("rolled_back", "RolledBack", "joined")  # told by the coordinator, and by a shard


def visits(model, steps, faults, states, ends, *reached):
    budget = {name: it for name, it in faults.items() if name not in ("late", "abstains", "groups")}
    late, abstains = faults.get("late", 0), faults.get("abstains", frozenset())
    groups = faults.get("groups", frozenset())
    search = ServerSearch(
        model=model, steps=steps, late=late, abstains=abstains, groups=groups, budget=budget
    )
    search.run()
    assert search.states >= states, search.states
    assert search.ends >= ends, search.ends
    assert search.reached >= {"pulled", "ack", "ended", *reached}, search.reached


@pytest.mark.parametrize(
    ("model", "faults", "states", "ends"),
    [
        (BSP(), {}, 2309, 14),
        (SSP(1), {"abstains": frozenset({(0, 0)})}, 2510, 14),
        (BSP(), {"late": 1}, 4162, 17),
    ],
    ids=str,
)
def test_law_17_a_coordinator_that_dies_has_all_go_back_together(model, faults, states, ends):
    """At any point: shard 0 dies with it; the one that is started after it knows the last snapshot only."""
    visits(model, (1, 1), {"kills": (1, 0), **faults}, states, ends, *BACK)


@pytest.mark.parametrize(
    ("model", "faults", "states", "ends"),
    [
        (SSP(1), {}, 1567, 4),
        (BSP(), {"breaks": 1}, 5949, 14),
        (BSP(), {"cuts": 1}, 6861, 16),
    ],
    ids=str,
)
def test_law_17_a_shard_that_dies_has_all_go_back_together(model, faults, states, ends):
    """At any point, whether its stream breaks before, meanwhile or after, or a snapshot is being taken."""
    visits(model, (1, 1), {"kills": (0, 1), **faults}, states, ends, *BACK)


@pytest.mark.parametrize(
    ("faults", "states", "ends"),
    [({"stops": (1, 1)}, 1196, 8), ({"breaks": 1, "late": 1}, 1506, 10)],
    ids=str,
)
def test_law_17_a_server_that_stops_holds_nobody_up(faults, states, ends):
    """Nobody goes back for it, nor for a stream that breaks."""
    visits(BSP(), (1, 1), faults, states, ends)


@pytest.mark.parametrize(
    ("model", "faults", "states", "ends"),
    [
        (BSP(), {"kills": (0, 1)}, 6605, 36),
        (BSP(), {"late": 1, "deaths": 1}, 14069, 201),
    ],
    ids=str,
)
def test_law_17_an_order_that_fails_on_some_shards_leaves_nobody_behind(model, faults, states, ends):
    """Who is not let in everywhere, or answered too late, holds nobody up on the shards that let it in."""
    visits(model, (1, 1), {"misses": 1, **faults}, states, ends, "refused")


@pytest.mark.parametrize(
    ("steps", "faults", "states", "ends"),
    [
        ((1, 1), {"kills": (1, 0)}, 8272, 77),
        ((1, 1), {"kills": (0, 1)}, 4878, 25),
        ((1, 1), {"stops": (1, 0)}, 2497, 26),
        ((2, 1), {"stops": (0, 1)}, 10297, 14),
    ],
    ids=str,
)
def test_law_17_with_backup_workers_too_all_go_back_or_on_together(steps, faults, states, ends):
    """What was chosen, and who is late, is undone on all shards, or known to who takes a server's place."""
    visits(BSP(1), steps, faults, states, ends, "report")


@pytest.mark.parametrize(
    ("model", "steps", "faults", "states", "ends"),
    [
        (BSP(), (2, 1), {"rank_deaths": 2}, 1960, 83),
        (SSP(1), (2, 1), {"rank_deaths": 2}, 3344, 85),
        (BSP(), (1, 1), {"rank_deaths": 1, "returns": 1}, 4323, 54),
        (BSP(1), (1, 1), {"rank_deaths": 1}, 6367, 99),
    ],
    ids=str,
)
def test_law_17_a_group_whose_ranks_die_one_by_one_holds_nobody_up(model, steps, faults, states, ends):
    """Each rank has a shard of its own; what one has pushed and the other has not counts nowhere."""
    again = ("formed again",) * faults.get("returns", 0)
    visits(model, steps, {"groups": frozenset({0}), **faults}, states, ends, "torn", *again)


@pytest.mark.parametrize(("model", "states", "ends"), [(BSP(), 3482, 14), (SSP(1), 4100, 14)], ids=str)
def test_law_17_of_two_coordinators_at_a_time_the_newer_one_has_all_go_back(model, states, ends):
    """Whatever the older one, and who is still with it, do meanwhile."""
    visits(model, (1, 1), {"heirs": 1}, states, ends, *BACK)


@thorough
@pytest.mark.parametrize(
    ("model", "steps", "faults", "states", "ends"),
    [
        (SSP(1), (1, 1), {"kills": (1, 0), "misses": 1}, 25647, 138),
        (BSP(), (1, 1), {"kills": (2, 0)}, 24269, 53),
        (BSP(), (1, 1), {"kills": (0, 2)}, 11235, 20),
        (BSP(), (1, 1), {"kills": (1, 1)}, 40412, 109),
        (BSP(), (1, 1), {"kills": (1, 0), "leaves": 1}, 4116, 41),
        (BSP(), (1, 1), {"kills": (1, 0), "deaths": 1}, 27662, 382),
        (BSP(), (1, 1), {"kills": (1, 0), "pauses": 1}, 38908, 276),
        (SSP(1), (1, 1), {"kills": (0, 1), "pauses": 1}, 57595, 160),
        (BSP(), (2, 2), {"kills": (1, 0), "cuts": 1}, 22665, 58),
        (SSP(1), (2, 1), {"kills": (0, 1), "cuts": 1}, 21832, 88),
        (BSP(), (1, 1), {"kills": (1, 0), "cuts": 1, "late": 1}, 20615, 68),
        (BSP(), (1, 1), {"kills": (0, 1), "deaths": 1, "breaks": 1}, 89868, 382),
        (BSP(), (1, 1), {"kills": (0, 1), "stops": (1, 0), "deaths": 1}, 57740, 575),
        (BSP(), (1, 1), {"stops": (1, 1), "deaths": 1, "late": 1}, 50703, 580),
        (BSP(), (1, 1, 1), {"kills": (0, 1)}, 19020, 8),
        (BSP(1), (2, 1), {"stops": (1, 1)}, 32692, 46),
        (BSP(1), (2, 1), {"kills": (1, 0)}, 14306, 41),
        (BSP(1), (1, 1), {"kills": (1, 0), "deaths": 1}, 96270, 1103),
        (BSP(1), (1, 1), {"kills": (0, 1), "deaths": 1}, 63361, 423),
        (BSP(1), (1, 1), {"kills": (1, 0), "late": 1}, 13910, 78),
        (BSP(1), (1, 1), {"kills": (0, 1), "breaks": 1}, 27785, 104),
        (BSP(1), (1, 1, 1), {"kills": (0, 1)}, 64098, 253),
        (BSP(1), (1, 1), {"heirs": 1}, 13806, 77),
        (BSP(), (1, 1), {"heirs": 1, "deaths": 1}, 46538, 382),
        (BSP(), (1, 1), {"heirs": 1, "late": 1}, 7093, 17),
        (SSP(1), (2, 1), {"heirs": 1, "pauses": 1}, 304712, 486),
    ],
    ids=str,
)
def test_law_17_with_servers_and_workers_that_fail(model, steps, faults, states, ends):
    """As above: twice, and together."""
    visits(model, steps, faults, states, ends)
