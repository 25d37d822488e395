"""The state of one partition at one moment, as a value: what `Cell` dumps and loads.

Whoever goes on in the same moment loads all of it. A snapshot keeps less (`saved`), and who goes back to one
begins without members (`vacated`). It must not know bytes or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ps_server.shard.optimizer.partition_tensors import TensorsState
from ps_server.shard.partition.machine_state import MachineState
from ps_wire.errors import PsError


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """One partition. What is not said to be shared is a copy, which nobody writes.

    Attributes:
        machine: what is staged there is in memory of ours.
        tensors: weights and optimizer.
        loaded: whether it has weights.
        owed: worker -> (incarnation, what it is told at its next step).
    """

    machine: MachineState
    tensors: TensorsState
    loaded: bool = True
    hyper_mismatches: int = 0
    owed: Mapping[int, tuple[int, PsError]] = field(default_factory=dict)

    def saved(self) -> CellState:
        """The part of it that a snapshot keeps."""
        return replace(self, machine=self.machine.saved(), tensors=self.tensors.saved(), owed={})

    def vacated(self) -> CellState:
        """The state that who goes back to a snapshot begins with: members join again."""
        kept = self.saved()
        return replace(kept, machine=replace(kept.machine, members={}))
