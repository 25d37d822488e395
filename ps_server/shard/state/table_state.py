"""What a shard holds of a table, as values: taken from a table at work, put into a fresh one.

Legend: E = elements of a partition, P = parameter pieces in it.

Taken are weights, the optimizer's state of each piece with its step counter, clocks (which are what tells a
retry from news), versions, counters, and, where somebody else is to go on in the same moment, the members,
what is staged, the hyper-parameters that pushes refer to by number, and errors that workers have not heard.

    capture_cell(cell)              one partition, under its lock: no longer than a copy of it takes
    capture(table)                  all partitions of a table on this shard, one after the other
    restore_cell(cell, state)       into a cell of a table that was opened and has not started
    restore(table, state)           the same for all; `resume` then closes what is staged and complete

A snapshot's partition is taken at the moment of its cut: nothing is staged, and its members are history. A
hand-off takes a table as it stands (`going_on=True`), and only its successor may use it (`going_on=True`).

A friend of `StepMachine`, `Cell` and `ShardTable`: the one place that sees all they hold as a whole.
`table_state_codec` has the values' bytes. It must not know files, jobs or the coordinator.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ps_server.shard.optimizer.piece_optimizer import State
from ps_server.shard.partition.cell import Cell
from ps_server.shard.partition.machine import Contribution, Ledger, StepMachine, _Member
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import PayloadMismatch, PsError
from ps_wire.process import trace
from ps_wire.spec.plan import Piece
from ps_wire.spec.table import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """A partition's state machine, but for what is staged and who waits.

    Attributes:
        members: worker -> (incarnation, clock).
        tau: version staleness -> pushes applied with it.
    """

    version: int = 0
    newest_clock: int = 0
    mixed_steps: int = 0
    hyper_mismatches: int = 0
    tau: Mapping[int, int] = field(default_factory=dict)
    ledgers: Mapping[int, Ledger] = field(default_factory=dict)
    members: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """One partition. Its tensors are copies, which nobody writes.

    Attributes:
        weights: shape (E,), padding included.
        pieces: P, or more where parts of one have counted different steps: see `PartitionTensors.cuts`.
        optimizer: their states, as `PieceOptimizer.export_state` gives them.
        staged: contributions with a `Gradient` of their own memory, or abstentions; in rank order.
        owed: worker -> (incarnation, what it is told at its next step).
    """

    machine: MachineState
    weights: torch.Tensor
    pieces: Sequence[Piece]
    optimizer: Sequence[State]
    staged: tuple[Contribution, ...] = ()
    owed: Mapping[int, tuple[int, PsError]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table's part on one shard.

    Attributes:
        cells: partition -> its state.
        hyper: worker -> number -> hyper-parameters that it may still refer to.
    """

    cells: Mapping[int, CellState]
    hyper: Mapping[int, Mapping[int, Hyperparameters]] = field(default_factory=dict)


def capture(table: ShardTable, *, going_on: bool = False) -> TableState:
    """A table as it stands, partition after partition; the caller sees to it that they fit together.

    Args:
        table: at work, or held still.
        going_on: with what is staged, said and owed: see the module's docstring.
    """
    cells = {index: capture_cell(table.cell(index), going_on=going_on) for index in table.partitions()}
    return TableState(cells=cells, hyper=table._hyper.all() if going_on else {})


def capture_cell(cell: Cell, *, going_on: bool = False) -> CellState:
    """One partition as it stands. Takes the cell's lock, for a copy of what it holds.

    Raises:
        PayloadMismatch: its weights have not been loaded.
    """
    with cell.lock:
        if not cell.loaded:
            raise PayloadMismatch("a partition without weights has no state")
        return CellState(
            machine=_capture_machine(cell.machine, cell.hyper_mismatches),
            weights=cell.values.now.clone(),
            pieces=cell.values.cuts,
            optimizer=cell.export_state(),
            staged=tuple(map(_own, cell.machine.staged)) if going_on else (),
            owed=cell.owed.dump() if going_on else {},
        )


def _capture_machine(machine: StepMachine, hyper_mismatches: int) -> MachineState:
    return MachineState(
        version=machine.version,
        newest_clock=machine.newest_clock,
        mixed_steps=machine.mixed_steps,
        hyper_mismatches=hyper_mismatches,
        tau=dict(machine.tau),
        ledgers={worker: replace(ledger) for worker, ledger in machine.ledgers.items()},
        members={worker: (member.incarnation, member.clock) for worker, member in machine._members.items()},
    )


def _own(contribution: Contribution) -> Contribution:
    gradient = contribution.payload
    if gradient is None:
        return contribution
    return replace(contribution, payload=replace(gradient, values=gradient.values.clone(), borrowed=False))


def restore(table: ShardTable, state: TableState, *, going_on: bool = False) -> None:
    """Puts a captured state into a table that was opened and has not started.

    Args:
        table: of the same plan.
        state: of all its partitions.
        going_on: members are those of the state, and what was staged, said and owed still is. Without it,
            members come by `join` or `enter`, as for a table that is new.

    Raises:
        PayloadMismatch: the state is not of this table; parts may have been restored, and it must not start.
    """
    if set(state.cells) != set(table.partitions()):
        raise PayloadMismatch(
            f"the state has {len(state.cells)} partitions, table {table.spec.number} has "
            f"{len(table.partitions())} here"
        )
    for index, cell_state in state.cells.items():
        restore_cell(table.cell(index), cell_state, going_on=going_on)
    if going_on:
        for worker, kept in state.hyper.items():
            for number, hyper in sorted(kept.items()):
                table._hyper.keep(worker, number, hyper)
    else:
        table.choose_from_here()


@trace.traced("restore")
def restore_cell(cell: Cell, state: CellState, *, going_on: bool = False) -> None:
    """See `restore`; of one partition, whose weights nobody maps yet."""
    assert not cell.values.doubled, "weights are mapped when workers have the state"
    if state.weights.shape != cell.values.now.shape or state.weights.dtype != cell.values.now.dtype:
        raise PayloadMismatch(
            f"the state has {tuple(state.weights.shape)} weights of {state.weights.dtype}; the partition has "
            f"{tuple(cell.values.now.shape)} of {cell.values.now.dtype}"
        )
    with cell.lock:
        cell.values.load(state.weights)
        cell.import_state(state.optimizer, state.pieces)
        cell.loaded = True
        cell.hyper_mismatches = state.machine.hyper_mismatches
        _restore_machine(cell.machine, state.machine)
        if going_on:
            for worker, (incarnation, clock) in state.machine.members.items():
                cell.machine._members[worker] = _Member(incarnation, clock)
            cell.machine._staged.update({item.worker: item for item in state.staged})
            cell.owed.load(state.owed)


def _restore_machine(machine: StepMachine, state: MachineState) -> None:
    machine.version = state.version
    machine.newest_clock = state.newest_clock
    machine.mixed_steps = state.mixed_steps
    machine.tau = Counter(state.tau)
    machine.ledgers = {worker: replace(ledger) for worker, ledger in state.ledgers.items()}


def resume(table: ShardTable) -> None:
    """After `restore` with `going_on` and the start of the table: steps that are complete close."""
    table.choose_from_here()
    now_s = time.monotonic()
    for cell in table.cells():
        with cell.lock:
            cell._carry_out(cell.machine._settle(now_s), now_s)
    table._settle()
