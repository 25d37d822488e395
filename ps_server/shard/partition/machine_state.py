"""The state of a partition's machine at one moment, as values: what `StepMachine` dumps and loads. Pure.

Whoever goes on in the same moment loads all of it. A snapshot keeps less (`saved`): it is taken where nothing
is staged, and its members are history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ps_server.shard.partition.inputs import Contribution, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMember:
    """A member of a partition: see `StepMachine`."""

    incarnation: int
    clock: int
    prepared: bool = False
    fenced: bool = False
    late: bool = False
    asked: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """A partition's state machine, but for pulls at the gate, which come again.

    Attributes:
        members: by worker.
        tau: version staleness -> pushes applied with it.
        staged: contributions that wait for their step to close, in rank order.
        chosen: the workers whose pushes the open step takes; None: it is not chosen.
        late: workers that wait to catch up: it may have been decided elsewhere where they go on.
    """

    version: int = 0
    newest_clock: int = 0
    mixed_steps: int = 0
    tau: Mapping[int, int] = field(default_factory=dict)
    ledgers: Mapping[int, Ledger] = field(default_factory=dict)
    members: Mapping[int, MachineMember] = field(default_factory=dict)
    staged: tuple[Contribution, ...] = ()
    chosen: frozenset[int] | None = None
    late: tuple[int, ...] = ()

    def saved(self) -> MachineState:
        """The part of it that a snapshot keeps."""
        members = {
            worker: MachineMember(incarnation=it.incarnation, clock=it.clock)
            for worker, it in self.members.items()
        }
        return replace(self, members=members, staged=(), chosen=None, late=())
