"""One data connection over a socket, server end: a thread that reads and takes frames, one that writes.

It must not know who listens, nor which kind of socket it is. A frame is taken on the thread that has received
it, so nothing waits in between but what the system's buffers hold: while a frame is taken, the sender waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from ps_server.log import logger
from ps_server.rpc.greeting import HELLO_LIMIT_S
from ps_server.shard.connection_tokens import TOKEN_BYTES
from ps_server.shard.shard import Shard
from ps_server.shard.traffic import Refused
from ps_server.shard.transport.behind import Behind
from ps_server.shard.transport.outbox import MessageOutbox, corked
from ps_server.shard.transport.session import Session
from ps_wire.errors import ConnectionLost, FrameRefused, ProtocolMismatch, StrangerRefused
from ps_wire.frames.lists import joined
from ps_wire.process import watched
from ps_wire.sockets.frame_socket import FrameSocket

MAX_HELLO_BYTES = 128  # of meta: a token and the name of a job
CLOSE_LIMIT_S = 3.0  # for what is queued to leave, and for the peer to read it


class SocketConnection:
    """One socket with its reading and its writing thread. It owns the socket."""

    def __init__(
        self,
        shard: Shard,
        peer: FrameSocket,
        *,
        carrier: str,
        refusal: StrangerRefused | None,
        on_greeted: Callable[[SocketConnection], None],
        on_closed: Callable[[SocketConnection], None],
    ) -> None:
        """Nothing happens before `start`.

        Args:
            shard: whose frames come.
            peer: connected.
            carrier: its name, for people.
            refusal: this peer may not connect.
            on_greeted: called when it is no stranger any more: it was greeted; and when everything is freed.
            on_closed: called when everything of it is freed.
        """
        self._shard = shard
        self._peer = peer
        self._outbox = MessageOutbox(on_broken=peer.sever)
        self._session = Session(shard, self._outbox, token_bytes=TOKEN_BYTES, carrier=carrier)
        self._refusal = refusal
        self._on_greeted = on_greeted
        self._on_closed = on_closed
        self._stopping = False
        self._writer = watched.thread("ps-send", self._write, log=logger, failed=lambda _: self.sever())
        self._reader = watched.thread("ps-data", self._read, log=logger)

    def start(self) -> None:
        """Begins to read. Raises RuntimeError where the system has no thread left."""
        self._reader.start()

    def stop(self) -> None:
        """Takes no more frames, sends what is queued, and ends. Returns at once; any thread."""
        self._stopping = True
        self._outbox.close()
        if not self._session.authenticated:
            self._peer.sever()

    def sever(self) -> None:
        """Ends it at once. Any thread."""
        self._outbox.sever()

    def join(self, until_s: float) -> None:
        """Waits until it has ended, which it is made to at `until_s` of the monotonic clock."""
        self._reader.join(max(until_s - time.monotonic(), 0.0))
        if self._reader.is_alive():
            self._outbox.sever()
            self._reader.join(CLOSE_LIMIT_S)

    def _read(self) -> None:
        try:
            self._receive()
        except ConnectionLost:
            self._outbox.sever()
        except (FrameRefused, ProtocolMismatch) as error:
            self._session.refuse(error)
        except TimeoutError:
            self._shard.count_refused(Refused.CONNECTION)
            self._outbox.sever()
        except Exception:  # noqa: BLE001 - else the peer would wait for ever
            logger.exception("bug while receiving over a data connection")
            self._outbox.sever()
        finally:
            self._end()

    def _receive(self) -> None:
        until_s = time.monotonic() + HELLO_LIMIT_S
        try:
            if self._refusal is not None:
                raise self._refusal
            frame = self._peer.receive(max_body_bytes=MAX_HELLO_BYTES, until_s=until_s)
            goes_on = frame is not None and self._session.receive(frame)
            if self._session.authenticated:
                self._on_greeted(self)
        finally:
            self._start_writer()  # who is refused is told
        while goes_on and not self._stopping:
            self._outbox.wait_room()
            frame = self._peer.receive()
            if frame is None:
                return
            with corked(), closing(Behind(self._peer)) as behind:
                while goes_on and frame is not None:
                    goes_on = self._session.receive(frame, behind)
                    frame = behind.next() if goes_on else None

    def _start_writer(self) -> None:
        """Not before there is something to say: a stranger costs one thread."""
        try:
            self._writer.start()
        except RuntimeError as error:
            logger.error("cannot serve a data connection: %s", error)
            self._outbox.sever()

    def _end(self) -> None:
        try:
            self._session.closed()
            self._send_rest()
        finally:
            self._outbox.sever()  # a writer that is still there ends
            self._peer.close()
            self._on_greeted(self)
            self._on_closed(self)

    def _send_rest(self) -> None:
        """Sends what is queued, and gives the peer time to read it."""
        self._outbox.close()
        until_s = time.monotonic() + CLOSE_LIMIT_S
        if self._writer.ident is not None:
            self._writer.join(CLOSE_LIMIT_S)
            if self._writer.is_alive():
                self._outbox.sever()
                self._writer.join()
        if not self._outbox.broken:
            self._peer.discard(until_s)

    def _write(self) -> None:
        while messages := self._outbox.next():
            try:
                self._peer.send(joined([message.frame for message in messages]))
            except ConnectionLost:
                self._outbox.sever()
            except Exception:  # noqa: BLE001 - else the peer would wait for ever
                logger.exception("bug while sending over a data connection")
                self._outbox.sever()
            finally:
                self._outbox.done(messages)
            del messages
        self._peer.end_sending()
        if self._stopping:
            self._peer.sever()
