"""The rendezvous of the ranks of a group: they find each other through the coordinator, and share a store.

The leader keeps the store, on loopback. Where ranks may be on several hosts, and are, it is at the address of
the interface that leads to the coordinator. No address has to be configured, and who has not the job's token
gets no answer. It must not know what the store is used for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistNetworkError, TCPStore  # type: ignore[attr-defined]

from ps_wire.errors import PsError, ServerNotReady, ServerUnreachable, StartLimitExceeded, UsageError
from ps_wire.frames.frame import PROTOCOL
from ps_wire.process.ranks import Ranks
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1.coordinator_pb2_calls import CoordinatorCalls
from ps_worker.process.in_time import in_time
from ps_worker.process.retry import PAUSE_S
from ps_worker.process.waiting import waits

LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"
INTERFACE = "GLOO_SOCKET_IFNAME"  # of the environment
SIOCGIFADDR = 0x8915  # of linux/sockios.h: the address of an interface
CALL_LIMIT_S = 30.0  # the coordinator answers within two seconds
STORE_LIMIT_S = 60.0  # for one call to the store
STORE_GRACE_S = 5.0  # more than torch's own limit, which knows more, but not of a peer that says nothing
SAY_AFTER_S = 5.0  # who is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A group whose ranks are all there.

    Attributes:
        hosts: by rank, for people.
        machines: by rank, where it is: see `machine`.
        store: that they share.
        interface: of this host, over which the others reach this rank.
        address: of that interface.
    """

    hosts: tuple[str, ...]
    machines: tuple[str, ...]
    store: TCPStore
    interface: str = LOOPBACK_INTERFACE
    address: str = LOOPBACK


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
        towards: str = "",
        refused: str = "",
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
            towards: the coordinator's address, `HOST:PORT`.
            refused: why ranks may not be on several hosts; "": they may.
            clock: gives seconds.
        """
        self._coordinator = coordinator
        self._ranks = ranks
        self._job = job
        self._worker = worker
        self._limit_s = limit_s
        self._say = say
        self._towards = towards
        self._refused = refused
        self._clock = clock

    @waits("the other ranks of its group")
    def meet(self) -> Met:
        """Waits until all ranks are there.

        Raises:
            StartLimitExceeded: one did not come in time; it is named, with the hosts of those that did. Or
                rank 0 came, and has fallen silent, or is not reached.
            UsageError: the ranks are on several hosts, and may not be.
            PsError: what the coordinator refuses with, such as a rank that two processes have.
        """
        listening = self._listen() if self._ranks.leads else []
        try:
            reply = self._ask(",".join("{}:{}".format(*it.getsockname()) for it in listening))
            apart = len(set(reply.machines)) > 1
            if apart and self._refused:
                where = ", ".join(f"rank {rank} on {host}" for rank, host in enumerate(reply.hosts))
                raise UsageError(f"the ranks of one group are on several hosts ({where}): {self._refused}")
            near, _, far = reply.address.partition(",")
            host, _, port = (far if apart else near).rpartition(":")
            if not host:
                raise UsageError(
                    "rank 0 reaches the coordinator over loopback, or not over IPv4, and other ranks are on "
                    "other hosts: name the servers there, too, by IPv4 addresses that all hosts reach"
                )
            return Met(
                hosts=tuple(reply.hosts),
                machines=tuple(reply.machines),
                store=self._store(host, int(port), listening.pop(int(apart)) if listening else None),
                interface=_interface_towards(f"{host}:{port}") if apart else LOOPBACK_INTERFACE,
                address=_address_towards(f"{host}:{port}") if apart else LOOPBACK,
            )
        finally:
            for it in listening:
                it.close()

    def _store(self, host: str, port: int, listening: socket.socket | None) -> TCPStore:
        """The store that the ranks share; `listening`: this one keeps it there."""
        fd = None if listening is None else listening.detach()

        def connect() -> TCPStore:
            return TCPStore(
                host,
                port,
                self._ranks.size,
                self._ranks.leads,
                timeout=timedelta(seconds=STORE_LIMIT_S),
                wait_for_workers=False,
                master_listen_fd=fd,
            )

        try:
            return in_time("ps-store", connect, STORE_LIMIT_S + STORE_GRACE_S)
        except TimeoutError:
            raise StartLimitExceeded(
                f"rank 0 of worker {self._worker} has come, and its store at {host}:{port} takes connections "
                f"and says nothing for {STORE_LIMIT_S:g} s: it is stopped, or hangs",
                waiting_for="rank 0",
            ) from None
        except DistNetworkError as error:
            raise StartLimitExceeded(
                f"rank 0 of worker {self._worker} has come, and its store at {host}:{port} is not reached "
                f"within {STORE_LIMIT_S:g} s: it has ended, or the network is silent; {one_line(str(error))}",
                waiting_for="rank 0",
            ) from None

    def _listen(self) -> list[socket.socket]:
        """On loopback, and, where ranks may be on several hosts, on the way to the coordinator."""
        addresses = [LOOPBACK]
        if not self._refused and self._towards:
            with contextlib.suppress(OSError):  # not over IPv4: then ranks on other hosts are told so
                if (own := _address_towards(self._towards)) != LOOPBACK:
                    addresses.append(own)
        with contextlib.ExitStack() as made:
            sockets = [made.enter_context(socket.socket()) for _ in addresses]
            for it, address in zip(sockets, addresses, strict=True):
                it.bind((address, 0))
                it.listen(128)
            made.pop_all()
            return sockets

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


def kernel() -> str:
    """The same text on all processes of one kernel until it boots again, and on no other; "": not known."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def machine() -> str:
    """The same text on all processes of one machine (of one network namespace), and on no other.

    Loopback is one for a network namespace, so containers of one host are different machines here.
    """
    parts = [socket.gethostname(), kernel()]
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/net").readlink()))
    return " ".join(parts)[:255]


def _address_towards(address: str) -> str:
    """The IPv4 address of this host from which `HOST:PORT` is reached; nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        own: str = probe.getsockname()[0]
        return own


def _interface_towards(address: str) -> str:
    """The name of the network interface over which `HOST:PORT` is reached; "" where the environment has one.

    Raises:
        UsageError: none has that address by itself; the environment can name one.
    """
    if INTERFACE in os.environ:
        return ""
    import fcntl  # noqa: PLC0415 - not everywhere, and for several hosts alone

    own = socket.inet_aton(_address_towards(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)[20:24] == own:
                    return name
    raise UsageError(
        f"no network interface has the address {socket.inet_ntoa(own)}, from which {address} is reached: "
        f"name one in {INTERFACE}"
    )
