"""The carrier that a worker's data connections take: the first that reaches the shard, or the one wanted.

A shard is reached where its HELLO comes back, so host names decide nothing. There is one choice for all
connections of a worker: what it was, and why nothing better, is said once, and again only where it differs;
heartbeats carry it to who looks at the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ps_wire.errors import (
    ConfigurationRefused,
    ConnectionLost,
    Evicted,
    PsError,
    ServerNotReady,
    StrangerRefused,
)
from ps_wire.frames.carrier import AUTO, MEMORY, VALID, Carrier
from ps_wire.frames.service import DataStream, FramesOut, Landing, Service
from ps_wire.v1 import shard_pb2

ROUNDED = "a 16-bit wire dtype sends numbers of its own; shared memory has those of the table"
ABSENT = "the server does not offer it"
WANTED = "as PS_CARRIER says"
TRIES = 3  # of a carrier that is wanted, with a new introduction each: a shard may be on its way back
GREET_LIMIT_S = 5.0  # for a shard that has just offered a carrier to answer there


class CarrierChoice:
    """The choice of one worker. Thread-safe; `_changed` guards what was reached and said."""

    def __init__(
        self, service: Service, wanted: Carrier | None, say: Callable[[str], None], *, shares: bool = True
    ) -> None:
        """Takes the carrier that the person wants; None for the best one, without shm unless `shares`."""
        self._service = service
        self._wanted = wanted
        self._shares = shares
        self._say = say
        self._changed = threading.Condition()
        self._given_up = False
        self._reached: set[int] = set()
        self._missed: dict[int, int] = {}  # by shard, calls that did not reach it
        self._common: tuple[str, str] | None = None  # the first choice: carrier, why nothing better
        self._said: dict[int, tuple[str, str]] = {}  # by shard

    def stream(
        self,
        shard: int,
        *,
        introduce: Callable[[], tuple[shard_pb2.OpenReply, FramesOut]],
        landing: Landing,
    ) -> DataStream:
        """Opens a data connection.

        Args:
            shard: to which.
            introduce: asks the shard for its offers and a new token; returns the frames to send, too.
            landing: see `ps_wire.frames.service`.

        Raises:
            ConfigurationRefused: the carrier that is wanted is not offered, or has never reached the shard in
                `TRIES` calls.
            PsError: no carrier reaches the shard now.
        """
        opened, frames = introduce()
        offers = self._candidates(opened)
        failed: list[tuple[str, PsError]] = []
        if not self._shares and any(offer.name == Carrier.SHM for offer in offers):
            failed.append((Carrier.SHM, ConfigurationRefused(ROUNDED)))
            offers = [offer for offer in offers if offer.name != Carrier.SHM]
        for index, offer in enumerate(offers):
            if index:
                _, frames = introduce()  # a token is good for one HELLO, and that one may have arrived
            try:
                try:
                    stream = self._reach(shard, offer, frames, landing)
                except StrangerRefused:  # the shard may have been started again since it gave the token out
                    stream = self._reach(shard, offer, introduce()[1], landing)
            except PsError as error:
                failed.append((offer.name, error))
                continue
            self._chosen(shard, offer.name, failed)
            return stream
        raise self._failure(shard, failed)

    def _reach(self, shard: int, offer: shard_pb2.Carrier, frames: FramesOut, landing: Landing) -> DataStream:
        return self._service.stream(shard, frames, offer, landing=landing, limit_s=GREET_LIMIT_S)

    def passed_over(self) -> str:
        """Why connections go over no better carrier, for people; empty: none is better."""
        with self._changed:
            whys = {shard: why for shard, (_, why) in sorted(self._said.items()) if why}
            same = len(set(self._said.values())) == 1
        if same:
            return next(iter(whys.values()), "")
        shards_of: dict[str, list[int]] = {}
        for shard, why in whys.items():
            shards_of.setdefault(why, []).append(shard)
        return "; ".join(
            f"shard {first}" + (f" and {len(others)} more" if others else "") + f": {why}"
            for why, (first, *others) in shards_of.items()
        )

    def give_up(self) -> None:
        """No shard will be reached any more: nobody waits for it."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def all_take(self, carrier: Carrier, shards: int) -> bool:
        """Whether the connections to all shards have taken this carrier; waits for them, up to a limit."""

        def known() -> bool:
            others = any(name != carrier for name, _ in self._said.values())
            return others or self._given_up or len(self._said) == shards

        with self._changed:
            in_time = self._changed.wait_for(known, GREET_LIMIT_S)
            names = [name for name, _ in self._said.values()]
        if not in_time:
            self._say(
                f"weights are copied, not mapped: {shards - len(names)} of {shards} shards were not reached "
                f"over {carrier} within {GREET_LIMIT_S:g} s"
            )
        return names == [carrier] * shards

    def _candidates(self, opened: shard_pb2.OpenReply) -> list[shard_pb2.Carrier]:
        offers = [offer for offer in opened.carriers if offer.name in self._service.carriers]
        if self._wanted is None or MEMORY in self._service.carriers:
            return offers
        wanted = [offer for offer in offers if offer.name == self._wanted]
        if not wanted:
            raise ConfigurationRefused(
                f"carrier {self._wanted} (PS_CARRIER) is not offered: the server has "
                f"{', '.join(offer.name for offer in opened.carriers) or 'none'}; use {AUTO} or one of them",
                carrier=str(self._wanted),
            )
        return wanted

    def _failure(self, shard: int, failed: list[tuple[str, PsError]]) -> PsError:
        if not failed:
            return ConfigurationRefused(f"shard {shard} offers no carrier of this version: {VALID}")
        for _, error in failed:
            if isinstance(error, (Evicted, ServerNotReady)):  # the shard was reached: that is its answer
                return error
        tried = "; ".join(f"{name}: {error.message}" for name, error in failed)
        with self._changed:
            self._missed[shard] = self._missed.get(shard, 0) + 1
            if self._wanted is None or shard in self._reached or self._missed[shard] < TRIES:
                return ConnectionLost(f"no data connection to shard {shard}: {tried}")
        return ConfigurationRefused(
            f"carrier {self._wanted} (PS_CARRIER) does not reach shard {shard}: {tried}; use {AUTO}",
            carrier=str(self._wanted),
            shard=shard,
        )

    def _chosen(self, shard: int, name: str, failed: list[tuple[str, PsError]]) -> None:
        if name == MEMORY:
            return
        why = self._why(Carrier(name), dict(failed))
        with self._changed:
            self._reached.add(shard)
            self._changed.notify_all()
            said = self._said.get(shard, self._common)
            self._common = self._common or (name, why)
            self._said[shard] = name, why
            if said != (name, why):  # in the order in which they are decided: the common one first
                whose = "" if said is None else f" of shard {shard}"
                self._say(f"data{whose} goes over {name}" + (f" ({why})" if why else ""))

    def _why(self, taken: Carrier, failed: Mapping[str, PsError]) -> str:
        """Why nothing better was taken; empty: there is nothing better."""
        carriers = list(Carrier)
        better = carriers[: carriers.index(taken)]
        if better and self._wanted is not None:
            return WANTED
        return ", ".join(
            f"{carrier}: {failed[carrier].message if carrier in failed else ABSENT}" for carrier in better
        )
