"""Law 17 with servers that die, stop and come back: every reachable state of small jobs is visited.

On real shards and the real decisions of the coordinator. From each state honest events lead to an end of the
job; versions never go back but with a generation, no push is applied twice, none of an incarnation from before
a rollback, what a worker was told is done is on both shards, and at an end both hold the same: every step of
each worker that was not evicted. Each search says how many states and ends it found at least: it cannot shrink
unseen. `HYPOTHESIS_PROFILE=thorough` searches the larger ones, too.
"""

from __future__ import annotations

import os

import pytest

from ps_wire.consistency import BSP, SSP

from .search_servers import ServerSearch

thorough = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="minutes: HYPOTHESIS_PROFILE=thorough"
)
BACK = ("rolled_back", "RolledBack")  # told by the coordinator, and by a shard


def visits(search: ServerSearch, states: int, ends: int, *reached: str) -> None:
    search.run()
    assert search.states >= states, search.states
    assert search.ends >= ends, search.ends
    assert search.reached >= {"pulled", "ack", "ended", *reached}, search.reached


@pytest.mark.parametrize(
    ("model", "faults", "states", "ends"),
    [
        (BSP(), {"kills": (1, 0)}, 3173, 14),
        (BSP(), {"kills": (0, 1)}, 1529, 4),
        (SSP(1), {"kills": (1, 0)}, 1, 1),
        (BSP(), {"kills": (0, 1), "breaks": 1}, 9848, 19),
        (BSP(), {"kills": (0, 1), "cuts": 1}, 8103, 22),
    ],
    ids=str,
)
def test_law_17_a_server_that_dies_has_all_go_back_together(model, faults, states, ends):
    """Shard 0, and the coordinator with it, or shard 1; whatever else is under way."""
    visits(ServerSearch(model=model, steps=(1, 1), budget=faults), states, ends, *BACK)
