"""Addresses of the shards: one that was started again may have another address.

A worker reaches shards by the addresses that a person gave it, which need not be those that shards advertise
to others (a proxy, a name of another network). So an advertised address is used only once it has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from ps_wire.errors import PsError
from ps_wire.frames.service import Service
from ps_wire.v1 import coordinator_pb2 as pb

SEEK_LIMIT_S = 2.0


class ShardAddresses:
    """The newest address of each shard. Thread-safe."""

    def __init__(self, service: Service) -> None:
        """Knows nothing yet."""
        self._service = service
        self._advertised: list[str] = []
        self._lock = threading.Lock()

    def update(self, advertised: Sequence[str]) -> None:
        """Takes the addresses that the coordinator says, by shard; empty: that shard is not there."""
        with self._lock:
            known = self._advertised or [""] * len(advertised)
            for shard, (before, now) in enumerate(zip(known, advertised, strict=False)):
                if now and before and now != before:
                    self._service.move(shard, now)
            self._advertised = [now or before for before, now in zip(known, advertised, strict=False)]

    def seek(self) -> None:
        """Asks the coordinator, if it is there."""
        with suppress(PsError):
            reply = self._service.coordinator.Status(pb.StatusRequest(), timeout=SEEK_LIMIT_S)
            self.update(reply.shards)
