"""The servers of a group that has no others: one in the process of each of its ranks, on loopback.

The ranks tell each other their addresses through a store: that of their launcher (`ps-worker --nproc`), or
the one at MASTER_ADDR and MASTER_PORT, as torchrun has it. Rank 0 has the coordinator. It must not know what
the servers hold.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol

from torch.distributed import DistNetworkError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ps_wire.access.access import read
from ps_wire.errors import ConfigurationRefused, JobUnknown, PsError, StartLimitExceeded, UsageError
from ps_wire.frames.service import LOCAL_SERVER
from ps_wire.text import one_line
from ps_worker.group.rendezvous import LOOPBACK, STORE_GRACE_S, STORE_LIMIT_S, machine
from ps_worker.process.in_time import in_time
from ps_worker.process.waiting import waits
from ps_worker.settings import STORE, Settings

PAUSE_S = 0.02  # between two looks at the store
LEAVE_LIMIT_S = 5.0  # that a rank keeps its server for others that have not left

_rounds = itertools.count()  # a process may connect, leave and connect again, and so do all ranks


class Hosted(Protocol):
    """A server of one shard inside this process."""

    @property
    def address(self) -> str:
        """HOST:PORT of its control plane."""

    def close(self) -> None:
        """Ends it."""


class OwnServers:
    """This rank's server, and the addresses of all.

    Attributes:
        addresses: by rank, and so in shard order.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        """Starts this rank's server and waits for those of the others.

        Args:
            settings: of the worker.
            say: told about changed certificates that cannot be taken.

        Raises:
            StartLimitExceeded: a rank did not come in time; it is named. Or nobody answers where they meet.
            UsageError: the ranks are on several hosts, or there is no store where they meet.
            ConfigurationRefused: the server of another rank could not start.
            PsError: this rank's could not.
        """
        self._ranks = settings.ranks
        self._limit_s = settings.start_limit_s
        self._store = PrefixStore(f"ps-servers/{next(_rounds)}", _meet(settings))
        coordinator = None if self._ranks.leads else str(self._wait(0)["address"])
        access = read(token_file=settings.token_file, tls_dir=settings.tls_dir, serves=True, complain=say)
        try:
            self._server: Hosted = _maker()(
                self._ranks.rank, self._ranks.size, coordinator, access, settings.snapshots
            )
        except PsError as error:
            self._tell({"error": error.message})
            raise
        try:
            self._tell({"address": self._server.address})
            self.addresses = tuple(str(self._wait(rank)["address"]) for rank in range(self._ranks.size))
        except BaseException:
            self._server.close()
            raise

    def close(self, *, in_order: bool) -> None:
        """Ends this rank's server; `in_order`: once the other ranks need it no more, or after a while."""
        if in_order:
            with suppress(RuntimeError):  # the launcher is gone, and its store
                self._store.set(_left(self._ranks.rank), "")
                _wait_for(self._store, [_left(rank) for rank in range(self._ranks.size)], LEAVE_LIMIT_S)
        self._server.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _tell(self, said: Mapping[str, str]) -> None:
        known = {"machine": machine(), "size": self._ranks.size}
        self._store.set(_place(self._ranks.rank), json.dumps({**known, **said}))

    @waits("the other ranks of its group")
    def _wait(self, rank: int) -> dict[str, Any]:
        """Waits for what a rank says of its server."""
        if not _wait_for(self._store, [_place(rank)], self._limit_s):
            raise StartLimitExceeded(
                f"rank {rank} of {self._ranks.size} did not start its server within {self._limit_s:g} s "
                "(PS_START_LIMIT)",
                waiting_for=f"rank {rank}",
            )
        said = _said(self._store, rank)
        if said["machine"] != machine():
            raise UsageError(
                f"rank {rank} and rank {self._ranks.rank} are on several hosts: without servers "
                "(PS_SERVERS=none) a group has one host; start ps-server"
            )
        return said


def find(settings: Settings) -> tuple[str, ...]:
    """The addresses of the servers of a group, for a reader, in shard order; waits for them.

    Args:
        settings: of the reader; ranks meet at the same store, and have connected once.

    Raises:
        JobUnknown: not all of them are there within `settings.wait_s`.
        ConfigurationRefused: one could not start.
    """
    until_s = time.monotonic() + settings.wait_s
    store = PrefixStore("ps-servers/0", _meet(settings))
    found: list[str] = []
    size = 1
    while len(found) < size:
        if not _wait_for(store, [_place(len(found))], until_s - time.monotonic()):
            raise JobUnknown(
                f"rank {len(found)} did not start its server within {settings.wait_s:g} s (PS_WAIT)"
            )
        said = _said(store, len(found))
        size = int(said["size"])
        found.append(str(said["address"]))
    return tuple(found)


def _said(store: Store, rank: int) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(store.get(_place(rank)))
    if "error" in said:
        raise ConfigurationRefused(f"rank {rank} could not start its server: {said['error']}")
    return said


def _wait_for(store: Store, keys: list[str], limit_s: float) -> bool:
    """Whether all are there in time."""
    until_s = time.monotonic() + limit_s
    while not store.check(keys):
        if time.monotonic() >= until_s:
            return False
        time.sleep(PAUSE_S)
    return True


def listen() -> tuple[socket.socket, str]:
    """A socket for the store of ranks that are about to start, and its address, for `STORE`."""
    listening = socket.create_server((LOOPBACK, 0))
    return listening, "{}:{}".format(*listening.getsockname())


def keep_store(listening: socket.socket) -> Store:
    """Keeps a store for the ranks, as long as what it gives lives; `listening` is its own from now on."""
    host, port = listening.getsockname()
    return TCPStore(
        host,
        port,
        None,
        is_master=True,
        timeout=timedelta(seconds=STORE_LIMIT_S),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _meet(settings: Settings) -> Store:
    """The store at which all ranks of this group meet."""
    try:
        return in_time("ps-store", partial(_connect, settings), settings.start_limit_s + STORE_GRACE_S)
    except TimeoutError:
        raise _too_late(
            settings,
            "connections are taken and nothing is said",
            "another program has that port, or the launcher is stopped",
        ) from None
    except (ValueError, RuntimeError) as error:
        # Rank 0 may be who listens there, and then it has come to a port that is not free.
        if isinstance(error, DistNetworkError) and not settings.ranks.leads:
            raise _too_late(
                settings,
                "nobody is reached",
                "rank 0 or the launcher has not begun or has ended, or MASTER_ADDR names another host; "
                + one_line(str(error)),
            ) from None
        raise UsageError(
            f"without servers (PS_SERVERS=none) the {settings.ranks.size} ranks of a group meet where "
            f"MASTER_ADDR and MASTER_PORT say: start them with ps-worker --nproc {settings.ranks.size} or "
            f"torchrun, or set both; {error}"
        ) from None


def _too_late(settings: Settings, what: str, why: str) -> StartLimitExceeded:
    place = os.environ.get(STORE) or f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return StartLimitExceeded(
        f"at {place}, where the ranks of this group meet, {what} for {settings.start_limit_s:g} s "
        f"(PS_START_LIMIT): {why}",
        waiting_for=place,
    )


def _connect(settings: Settings) -> Store:
    """Waits without end for one that accepts and says nothing: torch has a limit for all but that."""
    limit = timedelta(seconds=settings.start_limit_s)
    if STORE in os.environ:
        host, _, port = os.environ[STORE].rpartition(":")
        return TCPStore(host, int(port), None, is_master=False, timeout=limit, wait_for_workers=False)
    url = f"env://?rank={settings.ranks.rank}&world_size={settings.ranks.size}"
    store: Store = next(rendezvous(url, timeout=limit))[0]
    return store


def _maker() -> Callable[..., Hosted]:
    for entry in entry_points(group=LOCAL_SERVER):
        made: Callable[..., Hosted] = entry.load().beside_others
        return made
    raise UsageError(
        f"to run without servers, the entry point {LOCAL_SERVER} is needed and is not installed: "
        "install torch-parameter-server again (pip install -e . in a checkout), or set PS_SERVERS"
    )


def _place(rank: int) -> str:
    return f"server/{rank}"


def _left(rank: int) -> str:
    return f"left/{rank}"
