"""Durability of jobs when a shard loses what it held. Pure, so that `--help` need not wait for torch."""

from __future__ import annotations

from enum import StrEnum


class Durability(StrEnum):
    """They end, with an error that says so; or all shards go back to their last snapshots together."""

    NONE = "none"
    SNAPSHOT = "snapshot"
