"""A shard that follows, as the coordinator has it: the orders on their way and those it has not answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from ps_wire.v1 import coordinator_pb2 as pb

Answered: TypeAlias = "asyncio.Future[pb.OrderDone | None]"  # None: its stream has ended


@dataclass(slots=True)
class FollowerStream:
    """The coordinator's end of the stream to one shard that follows. Used on the event loop only.

    Attributes:
        address: as advertised.
        holder: how people are told which process it is.
        outbox: where its orders come out; None at the end.
        waiting: by number of the order.
    """

    address: str
    holder: str
    outbox: asyncio.Queue[pb.Order | None]
    waiting: dict[int, Answered] = field(default_factory=dict)

    def send(self, order: pb.Order) -> Answered:
        """Sends an order; returns what it will be answered with."""
        future: Answered = asyncio.get_running_loop().create_future()
        self.waiting[order.number] = future
        self.outbox.put_nowait(order)
        return future

    def give_up(self) -> None:
        """Its stream has ended, or ends now."""
        for future in self.waiting.values():
            if not future.done():
                future.set_result(None)
        self.outbox.put_nowait(None)
