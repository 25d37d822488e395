"""The rendezvous of the ranks of a group: they find each other through the coordinator, and share a store.

The leader keeps the store, on loopback: ranks on several hosts are refused. No address has to be
configured, and who has not the job's token gets no answer. It must not know what the store is used for.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ps_wire.errors import PsError, ServerNotReady, ServerUnreachable, StartLimitExceeded, UsageError
from ps_wire.frames.frame import PROTOCOL
from ps_wire.process.ranks import Ranks
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_calls import CoordinatorCalls
from ps_worker.process.retry import PAUSE_S
from ps_worker.process.waiting import waits

LOOPBACK = "127.0.0.1"
CALL_LIMIT_S = 30.0  # the coordinator answers within two seconds
STORE_LIMIT_S = 60.0  # for one call to the store
SAY_AFTER_S = 5.0  # who is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A group whose ranks are all there.

    Attributes:
        hosts: by rank, for people.
        store: that they share.
    """

    hosts: tuple[str, ...]
    store: TCPStore


class Rendezvous:
    """One process on its way to the other ranks of its group."""

    def __init__(
        self,
        coordinator: CoordinatorCalls,
        ranks: Ranks,
        *,
        job: str,
        worker: int,
        limit_s: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks nobody yet.

        Args:
            coordinator: whom it asks.
            ranks: its place in the group.
            job: of the group.
            worker: that the group is.
            limit_s: within which all must have come.
            say: tells the person at the terminal who is missing.
            clock: gives seconds.
        """
        self._coordinator = coordinator
        self._ranks = ranks
        self._job = job
        self._worker = worker
        self._limit_s = limit_s
        self._say = say
        self._clock = clock

    @waits("the other ranks of its group")
    def meet(self) -> Met:
        """Waits until all ranks are there.

        Raises:
            StartLimitExceeded: one did not come in time; it is named, with the hosts of those that did.
            UsageError: the ranks are on several hosts.
            PsError: what the coordinator refuses with, such as a rank that two processes have.
        """
        listening = self._listen() if self._ranks.leads else None
        try:
            address = "" if listening is None else "{}:{}".format(*listening.getsockname())
            reply = self._ask(address)
            if len(set(reply.machines)) > 1:
                where = ", ".join(f"rank {rank} on {host}" for rank, host in enumerate(reply.hosts))
                raise UsageError(
                    f"the ranks of one group are on several hosts ({where}): a group has one host; let each "
                    "host be a worker of its own, or a group of its own"
                )
            host, _, port = reply.address.rpartition(":")
            store = TCPStore(
                host,
                int(port),
                self._ranks.size,
                listening is not None,
                timedelta(seconds=STORE_LIMIT_S),
                wait_for_workers=False,
                master_listen_fd=None if listening is None else listening.detach(),
            )
            return Met(hosts=tuple(reply.hosts), store=store)
        finally:
            if listening is not None:
                listening.close()

    @staticmethod
    def _listen() -> socket.socket:
        listening = socket.socket()
        try:
            listening.bind((LOOPBACK, 0))
            listening.listen(128)
        except OSError:
            listening.close()
            raise
        return listening

    def _ask(self, address: str) -> pb.MeetReply:
        request = pb.MeetRequest(
            protocol=PROTOCOL,
            job=self._job,
            worker=self._worker,
            rank=self._ranks.rank,
            size=self._ranks.size,
            host=socket.gethostname(),
            machine=machine(),
            process=secrets.token_hex(16),
            address=address,
        )
        began_s = said_s = self._clock()
        missing = "the coordinator"
        while True:
            try:
                reply = self._coordinator.Meet(request, timeout=CALL_LIMIT_S)
            except (ServerNotReady, ServerUnreachable) as error:
                self._check_limit(began_s, missing, error)
                time.sleep(PAUSE_S)
                continue
            if reply.complete:
                return reply
            missing = reply.missing
            self._check_limit(began_s, missing)
            if self._clock() - said_s >= SAY_AFTER_S:
                said_s = self._clock()
                self._say(f"rank {self._ranks.rank}: the group waits for {missing}")

    def _check_limit(self, began_s: float, missing: str, error: PsError | None = None) -> None:
        if self._clock() - began_s >= self._limit_s:
            raise StartLimitExceeded(
                f"the group of worker {self._worker} was not complete within {self._limit_s:g} s "
                f"(PS_START_LIMIT); missing: {missing}",
                waiting_for=missing,
            ) from error


def machine() -> str:
    """The same text on all processes of one machine (of one network namespace), and on no other.

    Loopback is one for a network namespace, so containers of one host are different machines here.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/net").readlink()))
    return " ".join(parts)[:255]
