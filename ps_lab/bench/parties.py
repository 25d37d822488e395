"""Participants of a bench, and their order: rounds take turns, so that noise hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ps_lab.bench.figures import Round

WARM_UP_ROUNDS = 2  # the first allocates and connects, the second finds it done


class Party(Protocol):
    """One of those that are compared: processes that do a round together when told to."""

    @property
    def name(self) -> str:
        """For people and for JSON: "gloo"."""
        ...

    def round(self) -> Round:
        """Does one round and returns when it is over.

        Raises:
            PsError: one of its processes ended or did not answer in time.
        """
        ...


def interleave(
    parties: Sequence[Party], rounds: int, *, on_round: Callable[[], None] = lambda: None
) -> dict[str, list[Round]]:
    """Rounds of all parties in turn: A B C A B C ...; the first `WARM_UP_ROUNDS` of each are dropped.

    Args:
        parties: in the order of their turns.
        rounds: that are kept, of each.
        on_round: called after each round, dropped ones too.

    Returns:
        The rounds of each party, by its name.
    """
    kept: dict[str, list[Round]] = {party.name: [] for party in parties}
    for number in range(WARM_UP_ROUNDS + rounds):
        for party in parties:
            done = party.round()
            if number >= WARM_UP_ROUNDS:
                kept[party.name].append(done)
            on_round()
    return kept
