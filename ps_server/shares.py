"""Who shares which epoch of which loader: fixed when the first worker asks for its part of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_EPOCHS = 10_000  # that are remembered, over all loaders; the oldest are forgotten
ANY = 0  # instead of an incarnation: whoever comes first under that number


@dataclass(slots=True)
class Shares:
    """See the module's docstring. Not thread-safe."""

    _fixed: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)

    def ask(
        self, loader: int, epoch: int, worker: int, incarnation: int, sharing: Mapping[int, int]
    ) -> list[int]:
        """The workers that share an epoch, by number; none where the one who asks has no part of it.

        Args:
            loader: its number, the same on all workers.
            epoch: of that loader.
            worker: who asks.
            incarnation: of it. One that came after the epoch was fixed has no part.
            sharing: worker -> incarnation, or `ANY`, of those who share it if it is not fixed yet.
        """
        shares = self._fixed.get((loader, epoch))
        if shares is None:
            shares = self._fixed[loader, epoch] = dict(sharing)
            while len(self._fixed) > MAX_EPOCHS:
                del self._fixed[next(iter(self._fixed))]
        if shares.get(worker) == ANY:
            shares[worker] = incarnation
        return sorted(shares) if shares.get(worker) == incarnation else []

    def reopen(self) -> None:
        """Workers begin their epochs again as other incarnations, and get the shares that they had."""
        self._fixed = {key: dict.fromkeys(shares, ANY) for key, shares in self._fixed.items()}

    def clear(self) -> None:
        """All workers are gone: who goes on with the job begins its epochs anew."""
        self._fixed.clear()

    def capture(self, _clocks: Mapping[int, int]) -> list[dict[str, object]]:
        """For JSON."""
        return [
            {"loader": loader, "epoch": epoch, "workers": sorted(shares)}
            for (loader, epoch), shares in self._fixed.items()
        ]
