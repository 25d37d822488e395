"""The optimizer's state of partitions as messages, and back: what `Shard.Dump` and `Shard.LoadState` carry.

Legend: P = parameter pieces of a partition.

A partition is read under its cell's lock and set under it, whole: no state is ever torn. What a peer sends
is bounded while it arrives: a piece, a name and a number of bytes that the table's optimizer can have, each
once. It must not know gRPC. It works on tensors, so it is called on threads beside the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ps_server.log import logger
from ps_server.shard.optimizer.piece_optimizer import State
from ps_server.shard.partition.cell import Cell
from ps_server.shard.state.piece_states import joined, steps
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import PayloadMismatch
from ps_wire.frames import state_messages
from ps_wire.spec.plan import Piece
from ps_wire.v1 import shard_pb2 as pb


def dump(table: ShardTable, partition: int) -> list[pb.PartitionState]:
    """The state of one partition, in one or more messages."""
    cell = table.cell(partition)
    with cell.lock:
        parts, found = cell.values.parts, cell.export_state()
    states = joined(cell.pieces, parts, found)
    if parts != cell.pieces:
        _say_joined(table, partition, parts, found)
    entries = ((piece, name, state[name]) for piece, state in enumerate(states) for name in state)
    return list(state_messages.pack(partition, entries))


def _say_joined(table: ShardTable, partition: int, parts: Sequence[Piece], states: Sequence[State]) -> None:
    counted: dict[str, list[int]] = {}
    for part, state in zip(parts, states, strict=True):
        counted.setdefault(table.plan.parameters[part.parameter].name, []).append(int(steps(state)))
    for name, counters in counted.items():
        if len(counters) > 1:
            logger.warning(
                "table %d: parts of parameter %s in partition %d have taken %s steps: read as one state, the "
                "largest number counts",
                table.spec.number,
                name,
                partition,
                ", ".join(map(str, counters)),
            )


class Loading:
    """One stream of messages that set state. Not thread-safe.

    Attributes:
        partitions: that were set.
    """

    def __init__(self, table: ShardTable) -> None:
        self.partitions: set[int] = set()
        self._table = table
        self._open: int | None = None
        self._states: list[dict[str, torch.Tensor]] = []

    def receive(self, message: pb.PartitionState) -> None:
        """Keeps what a message brings; the last one of a partition sets it.

        Raises:
            PayloadMismatch: it does not fit; its partition keeps the state that it had.
        """
        cell = self._table.cell(message.partition)
        if self._open is None:
            if message.partition in self.partitions:
                raise PayloadMismatch(f"partition {message.partition} comes twice in one load")
            self._open, self._states = message.partition, [{} for _ in cell.pieces]
        elif self._open != message.partition:
            raise PayloadMismatch(f"partition {message.partition} comes before {self._open} is complete")
        for tensor in message.tensors:
            self._keep(cell, tensor)
        if message.last:
            cell.import_state(self._states)
            self.partitions.add(message.partition)
            self._open, self._states = None, []

    def end(self) -> None:
        """The stream has ended.

        Raises:
            PayloadMismatch: in the middle of a partition, which keeps the state that it had.
        """
        if self._open is not None:
            raise PayloadMismatch(
                f"the state of partition {self._open} is not complete", partition=self._open
            )

    def _keep(self, cell: Cell, tensor: pb.StateTensor) -> None:
        name = tensor.name
        if tensor.piece >= len(cell.pieces):
            raise PayloadMismatch(
                f"partition {self._open} has {len(cell.pieces)} pieces, got state of piece {tensor.piece}"
            )
        piece = cell.pieces[tensor.piece]
        whose = f"{name[:64]!r} of parameter {self._table.plan.parameters[piece.parameter].name!r}"
        if name not in cell.values.state_names:
            names = ", ".join(cell.values.state_names) or "nothing"
            raise PayloadMismatch(f"the state has no {whose}: here the optimizer keeps {names}")
        state = self._states[tensor.piece]
        if name in state:
            raise PayloadMismatch(f"{whose} comes twice")
        state[name] = state_messages.unpack(tensor, piece.numel)
