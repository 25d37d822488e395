"""The tensors of one partition: its weights, and the optimizer that changes them.

Legend: E = elements of the partition, P = parameter pieces in it.

It must not know steps, workers or frames. Not thread-safe: its cell has a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ps_server.shard.optimizer import steppers
from ps_server.shard.optimizer.bound_optimizer import BoundOptimizer, MakeOptimizer
from ps_server.shard.optimizer.piece_optimizer import State
from ps_server.shard.optimizer.spares import Spares
from ps_server.shard.optimizer.steppers import Stepper
from ps_server.shard.optimizer.versioned_weights import VersionedWeights
from ps_wire.errors import PayloadMismatch
from ps_wire.frames.buffer import bytes_of
from ps_wire.frames.carrier import Message
from ps_wire.process import trace
from ps_wire.spec import codec as codecs
from ps_wire.spec.plan import Piece
from ps_wire.spec.table import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorsState:
    """The tensors of a partition at one moment.

    Attributes:
        weights: shape (E,), padding included; a copy.
        parts: P pieces, or more where parts of one have counted different steps: see `PartitionTensors`.
        optimizer: their states, as `PieceOptimizer.export_state` gives them; copies.
        other: the half with the version before, shape (E,), where weights are doubled; shared, not copied.
        kept: version -> weights of that older version, shape (E,); shared, for nobody writes them.
    """

    weights: torch.Tensor
    parts: Sequence[Piece]
    optimizer: Sequence[State]
    other: torch.Tensor | None = None
    kept: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def saved(self) -> TensorsState:
        """The part of it that a snapshot keeps."""
        return replace(self, other=None, kept={})


class PartitionTensors:
    """The weights of a partition, with what replies need of them, and the optimizer that changes them.

    Attributes:
        parts: pieces that the optimizer works on: P, or more where parts of one have counted different steps.
        zeros: shape (E,), for who has no gradient.
        doubled: the weights lie in two halves that workers map; each version takes the other one.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        pieces: Sequence[Piece],
        make_optimizer: MakeOptimizer,
        spares: Spares | None = None,
    ) -> None:
        """Takes `weights`, shape (E,), over; `make_optimizer` makes one for P pieces."""
        self._weights = VersionedWeights(weights, spares)
        self._pieces = self.parts = tuple(pieces)
        self._make_optimizer = make_optimizer
        self._bound = self._bind(self._pieces) if pieces else None
        self._group: Group | None = None  # whose ways these are
        self._fitting: list[tuple[Stepper[Any], Any]] = []
        self.zeros = torch.zeros(1, dtype=weights.dtype).expand(weights.numel())
        self.doubled = False
        self._payloads: dict[int, memoryview] = {}  # of halves, by where they lie
        self._rounded: dict[int, tuple[int, memoryview]] = {}  # by codec: of which version
        self._kept: dict[int, torch.Tensor] = {}  # weights of older versions, which nobody writes

    @property
    def now(self) -> torch.Tensor:
        """The weights, shape (E,); only read."""
        return self._weights.now

    @property
    def ahead(self) -> bool:
        """Whether what the next `apply` makes is there already."""
        return self._weights.ahead

    @property
    def payload(self) -> memoryview:
        """The weights' bytes where they lie."""
        if not self.doubled:
            return bytes_of(self.now)
        address = self.now.data_ptr()
        if address not in self._payloads:
            self._payloads[address] = bytes_of(self.now)
        return self._payloads[address]

    def rounded(self, codec: int, version: int) -> memoryview:
        """The weights' bytes as a codec has them, a copy that nobody writes, one for all who ask.

        Args:
            codec: one for these weights, but not `AS_THEY_ARE`.
            version: of the weights.
        """
        made = self._rounded.get(codec)
        if made is None or made[0] != version:
            made = self._rounded[codec] = version, self._round(codec)
        return made[1]

    @trace.traced("round weights")
    def _round(self, codec: int) -> memoryview:
        return bytes_of(self.now.to(codecs.travelling(codec, self.now.dtype)))

    def keep(self, version: int) -> None:
        """Keeps a copy of the weights, which are of this version, until `keep_only` lets it go."""
        self._kept[version] = self.now.clone()

    def keep_only(self, versions: Collection[int]) -> None:
        """Lets go of what was kept of other versions."""
        if self._kept:
            self._kept = {version: kept for version, kept in self._kept.items() if version in versions}

    def kept(self, version: int, codec: int) -> memoryview:
        """The bytes of weights that were kept, as a codec has them."""
        kept = self._kept[version]
        dtype = kept.dtype if codec == codecs.AS_THEY_ARE else codecs.travelling(codec, kept.dtype)
        return bytes_of(kept.to(dtype))

    @property
    def kept_bytes(self) -> int:
        """Of weights of older versions."""
        return sum(kept.nbytes for kept in self._kept.values())

    def sent(self, reply: Message) -> None:
        """See `VersionedWeights.sent`."""
        self._weights.sent(reply)

    def set_weights(self, values: torch.Tensor) -> None:
        """Sets the weights, shape (E,), with an optimizer that has no state."""
        self._weights.make_writable()
        if self._bound is not None and self._bound.elsewhere:
            self._bound.rebind()
        if self.optimizer_bytes():
            self._use(self._bind(self._pieces), self._pieces)
        self.now.copy_(values)

    def double(self, halves: tuple[torch.Tensor, torch.Tensor], version: int, *, loaded: bool) -> None:
        """See `VersionedWeights.double`."""
        self._weights.double(halves, version, loaded=loaded)
        self.doubled = True
        if self._bound is not None:
            self._use(self._bound, self.parts)
            self._bound.rebind()

    def step_ahead(self, terms: Sequence[torch.Tensor], group: Group, ranks: int = 1) -> bool:
        """Writes what a step with the mean of these comes to into the other half, where one pass can do that.

        Args:
            terms: of shape (E,) each, in rank order, a value in each piece.
            group: hyper-parameters.
            ranks: how many terms, one behind the other, are the mean of one gradient.

        Returns:
            Whether all of it is finite, and the next `apply` of these only has to turn to it.
        """
        if self._bound is None:
            return False
        stepper, rate = self._ways(self._bound, group)[0]
        return stepper is steppers.PLAIN and steppers.step_ahead(self._bound, rate, terms, ranks)

    def step_along(self, gradient: torch.Tensor, group: Group, copy: torch.Tensor) -> bool:
        """Writes what a step comes to beside the weights, and a copy of that, where one pass can do it.

        Args:
            gradient: shape (E,), a value in each piece.
            group: hyper-parameters.
            copy: where the copy goes, shape (E,).

        Returns:
            As `step_ahead`; where it is False, the copy is of the weights as they are, or was not touched.
        """
        if self._bound is None:
            return False
        stepper, rate = self._ways(self._bound, group)[0]
        return stepper is steppers.PLAIN and steppers.step_along(self._bound, rate, gradient, copy)

    @trace.traced("optimizer")
    def apply(self, average: torch.Tensor | None, present: Sequence[bool], group: Group) -> None:
        """One optimizer step, by the first way that takes it.

        Args:
            average: shape (E,); None where `step_ahead` or `step_along` did it.
            present: P flags; pieces without a gradient are skipped.
            group: hyper-parameters.
        """
        bound = self._bound
        if bound is None:
            self.carry()
            return
        for stepper, fit in self._ways(bound, group):
            if stepper.run(bound, fit, average, present):
                return

    def _ways(self, bound: BoundOptimizer, group: Group) -> list[tuple[Stepper[Any], Any]]:
        """The steppers that fit; looked for again only where the hyper-parameters are others."""
        if group is not self._group:
            self._fitting, self._group = steppers.fitting(bound, group), group
        return self._fitting

    def carry(self) -> None:
        """The next version is like this one."""
        self._weights.carry()

    def _bind(self, parts: Sequence[Piece]) -> BoundOptimizer:
        return BoundOptimizer(self._weights, self._pieces, parts, self._make_optimizer)

    def _use(self, bound: BoundOptimizer, parts: tuple[Piece, ...]) -> None:
        """Steps go on with this optimizer; what fits is looked at again."""
        self._bound, self.parts, self._group = bound, parts, None

    # -- all of it -------------------------------------------------------------------------------------

    def dump(self) -> TensorsState:
        """All tensors as they are now."""
        return TensorsState(
            weights=self.now.clone(),
            parts=self.parts,
            optimizer=self.export_state(),
            other=self._weights.other,
            kept=dict(self._kept),
        )

    def load(self, state: TensorsState) -> None:
        """Takes over a state, but for its other half: see `load_other`. Nobody maps these weights yet.

        Raises:
            PayloadMismatch: it is of another partition.
        """
        assert not self.doubled, "weights are mapped when workers have the state"
        now, given = self.now, state.weights
        if given.shape != now.shape or given.dtype != now.dtype:
            raise PayloadMismatch(
                f"the state has {tuple(given.shape)} weights of {given.dtype}; the partition has "
                f"{tuple(now.shape)} of {now.dtype}"
            )
        self.set_weights(given)
        self.import_state(state.optimizer, state.parts)
        self._kept = {version: kept.clone() for version, kept in state.kept.items()}

    def load_other(self, values: torch.Tensor) -> None:
        """The half that holds the version before, shape (E,); the weights are doubled."""
        assert self._weights.other is not None
        self._weights.other.copy_(values)

    # -- the optimizer's state -------------------------------------------------------------------------

    def export_state(self) -> list[State]:
        """The states of `parts`, copied: see `PieceOptimizer.export_state`."""
        return self._bound.optimizer.export_state() if self._bound is not None else []

    def import_state(self, states: Sequence[State], parts: Sequence[Piece] | None = None) -> None:
        """Sets the states of `parts`, by default the P pieces. Raises as `PieceOptimizer.import_state`.

        A part begins at a multiple of 16 elements from its parameter's start.
        """
        if self._bound is None:
            return
        wanted = self._pieces if parts is None else tuple(parts)
        bound = self._bound if wanted == self.parts else self._bind(wanted)
        bound.optimizer.import_state(states)
        self._use(bound, wanted)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names that the optimizer's state of a piece may hold."""
        return self._bound.optimizer.state_names if self._bound is not None else ()

    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state."""
        return self._bound.optimizer.state_bytes() if self._bound is not None else 0
