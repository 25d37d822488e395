"""The lines of one rank to the others: a TCP connection each, over which short messages go.

Who waits does so in `poll`, on its own thread: a message costs one wake-up. Over gloo it took six, on three
threads: where 15 processes wanted two cores, two ranks told each other something in 8 ms, with 2 ms of
processor time each, and here in 0.08 ms with 0.03 ms (2026-11-23).

All that is queued leaves while anybody waits, so ranks that send each other much do not wait for each other.
`wake` may be called by any thread; everything else by one at a time. It must not know what the bytes are.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ps_wire.process.ranks import Ranks
from ps_worker.group.watch import Store
from ps_worker.process import after_fork

START_LIMIT_S = 60.0  # until all ranks that have met are connected
LOOK_S = 0.5  # between two looks at the group, while this rank waits
PAUSE_S = 0.005  # between two looks at the store
HELLO_LIMIT_S = 20.0  # until somebody that has connected says who it is
SECRET = "lines/secret"  # noqa: S105 - a key of the store
TOKEN_BYTES = 16
RANK_BYTES = 4


class Gone(Exception):
    """The other end of a line has gone.

    Attributes:
        rank: whose it was.
    """

    def __init__(self, rank: int, reason: str) -> None:
        """Takes the rank, and what was seen."""
        super().__init__(f"rank {rank}: {reason}")
        self.rank = rank


class RankLines:
    """The lines of one rank."""

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        """Takes connected sockets, by rank, which are its own from now on."""
        self._sockets = dict(sockets)
        self._unsent: dict[int, deque[memoryview]] = {rank: deque() for rank in sockets}
        self._woken, self._waker = socket.socketpair()
        self._rank_of = {it.fileno(): rank for rank, it in sockets.items()}
        for it in sockets.values():
            it.setblocking(False)

    @property
    def sending(self) -> bool:
        """Whether something that was queued has not left."""
        return any(self._unsent.values())

    def queue(self, rank: int, data: bytes) -> None:
        """Sends bytes to a rank, as far as they leave at once; the rest while anybody waits.

        Raises:
            Gone: the rank has gone.
        """
        if data:
            self._unsent[rank].append(memoryview(data))
            self._send(rank)

    def receive(self, rank: int, into: memoryview) -> int:
        """The number of bytes of a rank that were there and now are in `into`; does not wait.

        Raises:
            Gone: the rank has gone.
        """
        try:
            count = self._sockets[rank].recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Gone(rank, str(error)) from None
        if not count:
            raise Gone(rank, "the connection was closed")
        return count

    def wait(self, rank: int | None, limit_s: float) -> None:
        """Waits until there is something of a rank, or something has left, or `wake`, or for so long.

        Raises:
            Gone: a rank to which something is to leave has gone.
        """
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for other, it in self._sockets.items():
            events = select.POLLIN * (other == rank) | select.POLLOUT * bool(self._unsent[other])
            if events:
                poll.register(it, events)
        for descriptor, events in poll.poll(1000 * limit_s):
            if events & ~select.POLLIN and descriptor in self._rank_of:
                self._send(self._rank_of[descriptor])

    def wake(self) -> None:
        """Frees who waits, now and from now on."""
        self._waker.close()

    def close(self) -> None:
        """Ends all of them."""
        for it in (*self._sockets.values(), self._woken, self._waker):
            it.close()

    def _send(self, rank: int) -> None:
        unsent = self._unsent[rank]
        try:
            while unsent:
                sent = self._sockets[rank].send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            unsent.clear()
            raise Gone(rank, str(error)) from None


def connect(ranks: Ranks, store: Store, host: str, look: Callable[[], object] = lambda: None) -> RankLines:
    """The lines of a rank to all others, which call it, too.

    Args:
        ranks: which one this is.
        store: that they share; who can read it may connect.
        host: the address at which the others reach this rank.
        look: called now and then while this rank waits; what it raises ends that.

    Raises:
        OSError: some rank cannot be reached, or has not come.
        RuntimeError: the store is gone.
    """
    until_s = time.monotonic() + START_LIMIT_S
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((host, 0), backlog=ranks.size))
        if ranks.leads:
            store.set(SECRET, secrets.token_hex(TOKEN_BYTES))
        store.set(f"lines/{ranks.rank}", "{}:{}".format(*listening.getsockname()[:2]))
        secret = bytes.fromhex(_said(store, SECRET, until_s, look))
        made: dict[int, socket.socket] = {}
        for rank in range(ranks.rank):
            there, _, port = _said(store, f"lines/{rank}", until_s, look).rpartition(":")
            made[rank] = stack.enter_context(socket.create_connection((there, int(port)), START_LIMIT_S))
            made[rank].sendall(secret + ranks.rank.to_bytes(RANK_BYTES))
        while len(made) < ranks.size - 1:
            come = stack.enter_context(_accepted(listening, until_s, look))
            greeted = _greeted(come, secret)
            if greeted is not None and ranks.rank < greeted < ranks.size:
                made[greeted] = come
            else:
                come.close()
        for it in made.values():
            it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            after_fork.remember("{}:{}".format(*it.getpeername()[:2]))
        return RankLines({rank: it.dup() for rank, it in made.items()})


def _said(store: Store, key: str, until_s: float, look: Callable[[], object]) -> str:
    """Waits for what another rank says in the store."""
    while not store.check([key]):
        look()
        if time.monotonic() >= until_s:
            raise TimeoutError(f"nobody has said {key}")
        time.sleep(PAUSE_S)
    return store.get(key).decode()


def _accepted(listening: socket.socket, until_s: float, look: Callable[[], object]) -> socket.socket:
    while True:
        look()
        left_s = until_s - time.monotonic()
        listening.settimeout(max(min(left_s, LOOK_S), 0.001))
        try:
            return listening.accept()[0]
        except TimeoutError:
            if left_s <= 0.0:
                raise


def _greeted(come: socket.socket, secret: bytes) -> int | None:
    """The rank that somebody who has connected says that it is; None: it knows not the secret."""
    come.settimeout(HELLO_LIMIT_S)
    said = b""
    try:
        while len(said) < TOKEN_BYTES + RANK_BYTES:
            if not (more := come.recv(TOKEN_BYTES + RANK_BYTES - len(said))):
                return None
            said += more
    except OSError:
        return None
    return int.from_bytes(said[TOKEN_BYTES:]) if hmac.compare_digest(said[:TOKEN_BYTES], secret) else None
