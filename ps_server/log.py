"""The one logger of the server, and how its lines look."""

from __future__ import annotations

import logging
import sys
import time

logger = logging.getLogger("ps_server")


def set_up(shard: int, num_shards: int, *, level: int = logging.INFO) -> None:
    """Sends the server's log to stderr, one line an event, with UTC time, level and shard."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s shard={shard}/{num_shards} %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
