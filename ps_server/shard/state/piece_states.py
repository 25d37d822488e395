"""Optimizer states of parts of parameters that have counted different steps, put together.

A step may be taken on some partitions of a parameter only: a gradient that is not finite there is withheld, a
push is dropped that is too late there. Where a table is cut over other shards, parts with different counters
come to lie in one partition, as pieces of their own (`PartitionTensors.import_state`). Who asks for one state
of a plan's piece gets this. It must not know partitions or workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ps_server.shard.optimizer.piece_optimizer import State
from ps_wire.spec.plan import Piece


def joined(pieces: Sequence[Piece], parts: Sequence[Piece], states: Sequence[State]) -> list[State]:
    """One state for each piece: of the part that has taken the largest number of steps, what is no tensor.

    Args:
        pieces: of the plan.
        parts: the same elements in as many or more parts, by offset.
        states: of the parts; one that has none counts as zeros beside others.
    """
    whole: list[State] = []
    for piece in pieces:
        own = [
            (part, state)
            for part, state in zip(parts, states, strict=True)
            if part.parameter == piece.parameter
        ]
        whole.append(own[0][1] if len(own) == 1 else _join(own))
    return whole


def steps(state: State) -> float:
    """Steps that a state has counted; 0 where it does not count."""
    return state["step"].item() if "step" in state else 0.0


def _join(own: Sequence[tuple[Piece, State]]) -> State:
    newest = max((state for _, state in own), key=steps)
    kinds = {kind: value for _, state in own for kind, value in state.items()}
    return {
        kind: newest.get(kind, any_value)
        if any_value.dim() == 0
        else torch.cat([state.get(kind, any_value.new_zeros(part.numel)) for part, state in own])
        for kind, any_value in kinds.items()
    }
