"""An optimizer bound to the weights of a partition: what the ways to take a step work on.

Legend: E = elements of the partition, C = parts of it: pieces of parameters that count steps of their own.

It must not know which way is taken, nor who asks for weights. Not thread-safe: its cell has a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from ps_server.shard.optimizer.piece_optimizer import PieceOptimizer
from ps_server.shard.optimizer.splitter import Splitter
from ps_server.shard.optimizer.versioned_weights import VersionedWeights
from ps_wire.spec.plan import Piece

MakeOptimizer: TypeAlias = Callable[[Sequence[torch.Tensor]], PieceOptimizer]  # over C views of the weights


class BoundOptimizer:
    """An optimizer over views of one partition's weights, one view for each part.

    Attributes:
        weights: that it changes, shape (E,) each version.
        optimizer: over C views of the weights as they were at the last `rebind`.
        places: of the C parts in values of shape (E,).
    """

    def __init__(
        self,
        weights: VersionedWeights,
        pieces: Sequence[Piece],
        parts: Sequence[Piece],
        make_optimizer: MakeOptimizer,
    ) -> None:
        """Makes an optimizer without state.

        Args:
            weights: owned by somebody else, too, who reads them.
            pieces: of parameters, one each.
            parts: these pieces, or smaller ones of the same elements.
            make_optimizer: makes one for C pieces.
        """
        self.weights = weights
        self._split = Splitter(parts, weights.now.numel())
        index_of = {piece.parameter: index for index, piece in enumerate(pieces)}
        self.places = [slice(part.offset, part.offset + part.numel) for part in parts]
        self._whose = None if parts == pieces else [index_of[part.parameter] for part in parts]
        self._at = weights.now
        self.optimizer = make_optimizer(self._split(weights.now))

    def flags(self, of_pieces: Sequence[bool]) -> Sequence[bool]:
        """Those of the C parts, from those of the pieces."""
        return of_pieces if self._whose is None else [of_pieces[piece] for piece in self._whose]

    def given(self, average: torch.Tensor, flags: Sequence[bool]) -> list[torch.Tensor | None]:
        """The C gradients, None where a flag says that there is none."""
        parts = zip(self._split(average), flags, strict=True)
        return [values if there else None for values, there in parts]

    @property
    def elsewhere(self) -> bool:
        """Whether the weights are in other memory than the optimizer's views."""
        return self._at is not self.weights.now

    def rebind(self) -> None:
        """The optimizer goes on where the weights are now; before torch steps."""
        self._at = self.weights.now
        self.optimizer.rebind(self._split(self.weights.now))
