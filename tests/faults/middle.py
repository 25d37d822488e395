"""A host in the middle: what goes to a shard over TCP passes through here, and faults happen to named frames.

It listens on another loopback address, on the shard's own ports, so a worker that is told this address for
a shard has both planes of it here. The control plane is only forwarded. Frames of the data plane are read one
by one; a `Fault` says what happens to one.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from ps_wire.frames.frame import HEADER_BYTES, Header, Kind
from tests.integration.processes import LIMIT_S

HOST = "127.0.0.2"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST


class Do(StrEnum):
    """What happens to a frame."""

    DUPLICATE = "duplicate"  # it comes twice
    DROP = "drop"  # it is lost, and the connection with it
    RESET = "reset"  # it leaves, and the connection is reset: it may have come or not
    TRUNCATE = "truncate"  # half of it comes, then the stream ends
    DELAY = "delay"  # it waits for `Fault.go`, and all behind it
    REORDER = "reorder"  # the next frame of its direction overtakes it


@dataclass(eq=False, kw_only=True)
class Fault:
    """What is to happen to the next frame of a kind and step."""

    kind: Kind
    step: int
    do: Do
    going: threading.Event = field(default_factory=threading.Event)

    def go(self) -> None:
        """A frame that is delayed goes on."""
        self.going.set()


class Middle:
    """See the module's docstring.

    Attributes:
        address: of the shard, as a worker is told it.
        happened: faults, as they happen.
    """

    def __init__(self, control: str, data_port: int, faults: Sequence[Fault] = ()) -> None:
        control_port = int(control.rpartition(":")[2])
        self.address = f"{HOST}:{control_port}"
        self.happened: queue.SimpleQueue[Fault] = queue.SimpleQueue()
        self._waiting = list(faults)
        self._lock = threading.Lock()  # guards what waits, and the sockets
        self._sockets: set[socket.socket] = set()
        self._doors = {port: socket.create_server((HOST, port)) for port in (control_port, data_port)}
        self._data_port = data_port

    def __enter__(self) -> Self:
        for port in self._doors:
            threading.Thread(target=self._accept, args=(port,), name="middle", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self._waiting:
            fault.go()
        for made in [*self._doors.values(), *self._sockets]:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            made.close()

    @property
    def waiting(self) -> tuple[Fault, ...]:
        """Faults whose frame has not come."""
        return tuple(self._waiting)

    def next_fault(self) -> Fault:
        """Waits for the next one to happen."""
        return self.happened.get(timeout=LIMIT_S)

    def _accept(self, port: int) -> None:
        while True:
            try:
                client, _ = self._doors[port].accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:  # the shard is dead, and has another process soon
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            move = self._frames if port == self._data_port else self._bytes
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=move, args=(source, target), name="middle", daemon=True).start()

    @staticmethod
    def _bytes(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        end(source, target)

    def _frames(self, source: socket.socket, target: socket.socket) -> None:
        held = b""
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while len(head := stream.read(HEADER_BYTES)) == HEADER_BYTES:
                header = Header(head)
                body = stream.read(header.padded_meta_bytes + header.payload_bytes)
                frame = header.frame()
                fault = self._fault(frame.kind, frame.step)
                if fault is None:
                    target.sendall(head + body + held)
                    held = b""
                elif fault.do is Do.REORDER:
                    held = head + body
                    self.happened.put(fault)
                elif not self._done(fault, head + body, target):
                    break
            else:
                target.sendall(held)
        end(source, target)

    def _fault(self, kind: Kind, step: int) -> Fault | None:
        with self._lock:
            found = next((it for it in self._waiting if (it.kind, it.step) == (kind, step)), None)
            if found is not None:
                self._waiting.remove(found)
            return found

    def _done(self, fault: Fault, frame: bytes, target: socket.socket) -> bool:
        """Does it; False: the connection is at its end."""
        match fault.do:
            case Do.DUPLICATE:
                target.sendall(frame + frame)
                self.happened.put(fault)
                return True
            case Do.DELAY:
                self.happened.put(fault)
                assert fault.going.wait(LIMIT_S)
                target.sendall(frame)
                return True
            case Do.TRUNCATE:
                target.sendall(frame[: len(frame) // 2])
            case Do.RESET:
                target.sendall(frame)
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.happened.put(fault)
        return False


def end(source: socket.socket, target: socket.socket) -> None:
    """The stream is over, both ways."""
    for one in (target, source):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
