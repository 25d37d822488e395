"""A table's state on one shard, as a value: what `ShardTable` dumps and loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ps_server.shard.partition.cell_state import CellState
from ps_wire.spec.table import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table's part on one shard.

    Attributes:
        cells: partition -> its state.
        hyper: (worker, rank) -> number -> hyper-parameters that pushes may still refer to.
        membership_epoch: of the membership, as norms of clipped steps know it.
    """

    cells: Mapping[int, CellState]
    hyper: Mapping[tuple[int, int], Mapping[int, Hyperparameters]] = field(default_factory=dict)
    membership_epoch: int = 0
