"""One partition with its weights: the state machine's actions carried out on tensors.

Legend: E = elements of the partition, P = parameter pieces in it.

A cell's lock guards everything in it; it is held while a gradient is applied (about a millisecond per
4 MiB), and nothing under it waits for a peer: sending only queues. Weights change only under the lock and
are copied out under it, so no reply is ever torn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ps_server.average import Scratch, mean
from ps_server.optimizers import PieceOptimizer, State
from ps_server.partition import Ack, Action, Answer, Apply, Complete, Contribution, Partition, Pull
from ps_wire import frame as wire
from ps_wire.carrier import Outlet
from ps_wire.errors import JobUnknown
from ps_wire.plan import Piece
from ps_wire.table import Group, Hyperparameters

_CLOCK_BYTES = 12  # per member, in the meta of PULLED: worker u32, clock u64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The payload of a contribution.

    Attributes:
        values: shape (E,); read-only memory of the received message. All zeros where no piece is present.
        present: P flags: which pieces had a gradient. Pieces without one hold zeros.
        hyper: what its worker's `param_groups` said at that step.
    """

    values: torch.Tensor
    present: tuple[bool, ...]
    hyper: Hyperparameters


class Cell:
    """A partition of one table on one shard."""

    def __init__(
        self,
        *,
        table: int,
        index: int,
        group: int,
        weights: torch.Tensor,
        pieces: Sequence[Piece],
        optimizer: Callable[[Sequence[torch.Tensor]], PieceOptimizer],
        machine: Partition,
    ) -> None:
        """Takes `weights`, shape (E,), over: nobody else writes them."""
        self.lock = threading.Lock()
        self.machine = machine
        self.group = group
        self.weights = weights
        self.zeros = torch.zeros(1, dtype=weights.dtype).expand(weights.numel())
        self.pieces = tuple(pieces)
        self.loaded = False
        self.bytes_in = 0
        self.bytes_out = 0
        self.hyper_mismatches = 0
        self._table = table
        self._index = index
        self._make_optimizer = optimizer
        self._optimizer = self._fresh_optimizer()
        self._outlets: dict[int, Outlet] = {}

    @staticmethod
    def _of(values: torch.Tensor, piece: Piece) -> torch.Tensor:
        return values[piece.offset : piece.offset + piece.numel]

    def _fresh_optimizer(self) -> PieceOptimizer | None:
        pieces = [self._of(self.weights, piece) for piece in self.pieces]
        return self._make_optimizer(pieces) if pieces else None

    # -- inputs, from connections and from the coordinator's orders -----------------------------------

    def load(self, values: torch.Tensor) -> None:
        """Sets the weights, shape (E,), with an optimizer that has no state; before the table starts."""
        with self.lock:
            self._optimizer = self._fresh_optimizer()
            self.weights.copy_(values)
            self.bytes_in += values.nbytes
            self.loaded = True

    def push(self, contribution: Contribution, outlet: Outlet, now_s: float, scratch: Scratch) -> None:
        """A contribution with a `Gradient`, or an abstention. Raises what `Partition.push` raises."""
        with self.lock:
            actions = self.machine.push(contribution, now_s)
            if contribution.payload is not None:
                self.bytes_in += contribution.payload.values.nbytes
            self._outlets[contribution.worker] = outlet
            self._carry_out(actions, scratch)

    def pull(self, pull: Pull, outlet: Outlet, scratch: Scratch) -> None:
        """A member asks for the weights. Raises what `Partition.pull` raises."""
        with self.lock:
            self._require_loaded()
            self._outlets[pull.worker] = outlet
            self._carry_out(self.machine.pull(pull), scratch)

    def read(self, outlet: Outlet, step: int) -> None:
        """One who is no member asks for the weights: they are sent at once."""
        with self.lock:
            self._require_loaded()
            outlet.send(self._pulled(step, self.machine.version, self.machine.clocks))

    def join(self, worker: int, incarnation: int, clock: int, now_s: float, scratch: Scratch) -> None:
        """See `Partition.join`."""
        with self.lock:
            self._carry_out(self.machine.join(worker, incarnation, clock, now_s), scratch)

    def leave(self, worker: int, incarnation: int, now_s: float, scratch: Scratch) -> int:
        """See `Partition.leave`; returns the newest clock seen here."""
        with self.lock:
            self._carry_out(self.machine.leave(worker, incarnation, now_s), scratch)
            return self.machine.newest_clock

    def forget(self, outlet: Outlet) -> None:
        """A connection is gone: nothing more is sent there."""
        with self.lock:
            for worker in [key for key, known in self._outlets.items() if known is outlet]:
                del self._outlets[worker]

    def export_state(self) -> list[State]:
        """The optimizer's state of each piece, copied: see `PieceOptimizer.export_state`."""
        with self.lock:
            return self._optimizer.export_state() if self._optimizer is not None else []

    def import_state(self, states: Sequence[State]) -> None:
        """Sets the optimizer's state of all pieces. Raises what `PieceOptimizer.import_state` raises."""
        with self.lock:
            if self._optimizer is not None:
                self._optimizer.import_state(states)

    @property
    def state_names(self) -> tuple[str, ...]:
        """What the optimizer's state of a piece may hold."""
        return self._optimizer.state_names if self._optimizer is not None else ()

    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state."""
        return self._optimizer.state_bytes() if self._optimizer is not None else 0

    # -- what the machine decided ----------------------------------------------------------------------

    def _carry_out(self, actions: Sequence[Action], scratch: Scratch) -> None:
        for action in actions:
            match action:
                case Apply():
                    self._apply(action, scratch)
                case Ack(worker=worker, step=step):
                    self._send(
                        worker,
                        wire.Frame(
                            kind=wire.Kind.ACK,
                            table=self._table,
                            partition=self._index,
                            step=step,
                            worker=worker,
                        ),
                    )
                case Answer():
                    self._answer(action)
                case Complete():
                    raise AssertionError("this shard decides alone")

    def _apply(self, action: Apply, scratch: Scratch) -> None:
        gradients: list[Gradient] = [item.payload for item in action.contributions]
        hyper = gradients[0].hyper
        self.hyper_mismatches += sum(gradient.hyper != hyper for gradient in gradients[1:])
        if self._optimizer is None:
            return
        weights = [item.weight for item in action.contributions]
        average = mean([gradient.values for gradient in gradients], weights, scratch)
        if action.scale != 1.0:
            average = torch.mul(average, action.scale, out=scratch.take(average.dtype, average.numel()))
        self._optimizer.step(
            [
                self._of(average, piece) if any(gradient.present[place] for gradient in gradients) else None
                for place, piece in enumerate(self.pieces)
            ],
            self._group_of(hyper),
        )

    def _group_of(self, hyper: Hyperparameters) -> Group:
        return hyper.groups[self.group]

    def _answer(self, action: Answer) -> None:
        for step in sorted({pull.clock for pull in action.pulls}):
            message = self._pulled(step, action.version, action.clocks)  # one copy for all who asked it
            for pull in action.pulls:
                outlet = self._outlets.get(pull.worker)
                if pull.clock == step and outlet is not None:
                    outlet.send(message)

    def _pulled(self, step: int, version: int, clocks: tuple[tuple[int, int], ...]) -> bytes:
        meta = b"".join(
            worker.to_bytes(4, "little") + clock.to_bytes(_CLOCK_BYTES - 4, "little")
            for worker, clock in clocks
        )
        self.bytes_out += self.weights.nbytes
        return wire.encode(
            wire.Frame(
                kind=wire.Kind.PULLED,
                table=self._table,
                partition=self._index,
                step=step,
                version=version,
                meta=meta,
                payload=self.weights.numpy().data.cast("B"),
            )
        )

    def _send(self, worker: int, frame: wire.Frame) -> None:
        outlet = self._outlets.get(worker)
        if outlet is not None:
            outlet.send(wire.encode(frame))

    def _require_loaded(self) -> None:
        if not self.loaded:
            raise JobUnknown(
                f"partition {self._index} of table {self._table} has no weights yet",
                partition=self._index,
            )
