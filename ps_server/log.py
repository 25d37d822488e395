"""The one logger of the server, and how its lines look.

What peers say is in many messages: the formatter alone escapes it, so no place that logs can forget to.
"""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import TypeAlias

from ps_wire.text import one_line

logger = logging.getLogger("ps_server")
OTHERS = ("grpc", "asyncio")  # whose complaints hold peers' words, too

_ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


def set_up(shard: int, num_shards: int, *, level: int = logging.INFO) -> None:
    """Sends the server's log to stderr, one line an event, with UTC time, level and shard."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(shard, num_shards))
    handler.addFilter(concerns_us)
    for name in (logger.name, *OTHERS):
        named = logging.getLogger(name)
        named.handlers[:] = [handler]
        named.propagate = False
    logger.setLevel(level)


def concerns_us(record: logging.LogRecord) -> bool:
    """False for grpc.aio's traceback of an answer to a call that was over by then.

    A caller may hang up at any time, just before its answer too, and would fill the log in that way.
    """
    raised = record.exc_info[0] if record.exc_info else None
    return not (record.name.startswith("grpc.") and getattr(raised, "__name__", "") == "ExecuteBatchError")


class Lines(logging.Formatter):
    """One line an event, printable, of bounded length; lines of a traceback begin with a bar."""

    def __init__(self, shard: int, num_shards: int) -> None:
        """Takes what each line says: which shard it is, of how many."""
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s shard={shard}/{num_shards} %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """See `logging.Formatter`."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """See `logging.Formatter`: an exception's own text may hold a peer's."""
        return "\n".join(f"  | {one_line(line)}" for line in super().formatException(ei).splitlines())
