"""Signs of life of the shard at the other end of a data connection, where nothing comes from it.

A process that was stopped (SIGSTOP), or that hangs, keeps its sockets: its host answers for it, and no
end of a stream tells that nothing will come. So whoever has heard nothing for a while asks the process
itself, beside the data connection. A shard that waits for other workers answers, however long it waits.
Only silence tells that it hangs: a refusal is an answer, and where no way leads to it at all, since its port
refuses or this host has no ports or descriptors left, nothing is said about the shard.

It must not know how the shard is asked, nor what becomes of the connection. One thread looks, another hears.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from ps_wire.errors import PsError, ServerUnreachable

SILENT_S = 5.0  # without a frame, then it is asked
ANSWER_LIMIT_S = 10.0  # an event loop that is held up for longer than this is held up by a bug
CONNECT_LIMIT_S = 1.0  # a kernel whose process hangs takes connections for it


class Liveness:
    """The last sign of one shard. `_heard_s` needs no lock: it is a number, and older ones do no harm."""

    def __init__(
        self,
        ask: Callable[[float], object],
        silent: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is overdue yet.

        Args:
            ask: asks the process, and waits for the answer for so many seconds; raises `PsError`,
                `ServerUnreachable` where none has come.
            silent: whether nothing tells why none has come.
            clock: seconds.
        """
        self._ask = ask
        self._silent = silent
        self._clock = clock
        self._heard_s = clock()

    def hear(self) -> None:
        """A frame has come."""
        self._heard_s = self._clock()

    @property
    def due_s(self) -> float:
        """Seconds until it is to be asked, if nothing comes before."""
        return max(self._heard_s + SILENT_S - self._clock(), 0.0)

    def hangs(self) -> bool:
        """Asks, for at most `ANSWER_LIMIT_S`; whether nothing came, neither an answer nor a frame."""
        before_s = self._heard_s
        hangs = False
        try:
            self._ask(ANSWER_LIMIT_S)
        except ServerUnreachable:
            hangs = self._heard_s == before_s and self._silent()
        except PsError:  # it answers, though with a refusal
            pass
        self.hear()  # the next time is as long from now
        return hangs


def is_silent(address: str) -> bool:
    """Whether a connection there says nothing of why nobody answers: it is taken, or gets no answer itself.

    Args:
        address: HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT_S).close()
    except TimeoutError:
        return True
    except OSError:  # refused, or this host cannot make one
        return False
    return True
