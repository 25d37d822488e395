"""What of its epochs a loader's worker hands out, as the coordinator deals it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_worker.position import Piece

if TYPE_CHECKING:
    from ps_worker.link import Link


class Dealing:
    """See the module's docstring. A `Dealer`."""

    void = False

    def __init__(self, loader: int, link: Link) -> None:
        self._loader = loader
        self._link = link

    def deal(self, epoch: int, *, begins: bool, first: int) -> Piece | None:
        """See `Dealer`."""
        dealt = self._link.share(self._loader, epoch) if begins else None
        return None if dealt is None else Piece(epoch=epoch, place=dealt[0], count=dealt[1], first=first)
