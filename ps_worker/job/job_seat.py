"""A worker's seat in its job, and what it asks the coordinator, as the link sees them.

`Membership` and `CoordinatorCalls` are one of each; in a group of ranks the leader's answers reach all ranks
through another. What each method does is said there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb


class Asks(Protocol):
    """Calls to the coordinator beside the member's stream; see `CoordinatorCalls`."""

    def put_state(self, name: str, blob: bytes) -> None:
        """See `CoordinatorCalls`."""

    def wait_state(self, name: str, at_least: bytes, limit_s: float) -> bool:
        """See `CoordinatorCalls`."""

    def kept(self, table: int) -> dict[str, torch.Tensor]:
        """See `CoordinatorCalls`."""

    def saved(self) -> dict[str, torch.Tensor]:
        """See `CoordinatorCalls`."""

    def position(self, *, live: bool) -> tuple[dict[str, torch.Tensor], dict[int, int]]:
        """See `CoordinatorCalls`."""

    def begin_epoch(self, epoch: int, *, loop: int, stop: int) -> pb.EpochReply:
        """See `CoordinatorCalls`."""

    def stop_job(self, reason: str) -> pb.EpochReply:
        """See `CoordinatorCalls`."""

    def collect(self, request: pb.CollectRequest, *, until_s: float, limit_s: float) -> pb.CollectReply:
        """See `CoordinatorCalls`."""

    def epochs(self) -> list[pb.EpochUse]:
        """See `CoordinatorCalls`."""

    def behind(self) -> list[str]:
        """See `CoordinatorCalls`."""

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        """See `CoordinatorCalls`."""

    def use(self, request: pb.UseRequest) -> None:
        """See `CoordinatorCalls`."""


class Seat(Protocol):
    """The place of one incarnation in its job; see `Membership`."""

    @property
    def joined(self) -> pb.Joined:
        """See `Membership`."""

    @property
    def again(self) -> bool:
        """See `Membership`."""

    @property
    def calls(self) -> Asks:
        """See `Membership`."""

    @property
    def live_wanted(self) -> bool:
        """See `Membership`."""

    @property
    def position_wanted(self) -> bool:
        """See `Membership`."""

    def make_table(self, spec: TableSpec) -> None:
        """See `Membership`."""

    def wait_made(self, table: int) -> pb.TableMade:
        """See `Membership`."""

    def uploaded(self, table: int) -> None:
        """See `Membership`."""

    def wait_started(self, table: int) -> int | None:
        """See `Membership`."""

    def put_live(self, blob: bytes, step: int) -> None:
        """See `Membership`."""

    def put_position(self, blob: bytes, step: int) -> None:
        """See `Membership`."""

    def put_note(self, blob: bytes) -> None:
        """See `Membership`."""

    def finish(self, upload_final: Callable[[], bytes]) -> bool:
        """See `Membership`."""

    def whom(self) -> list[str]:
        """See `Membership`."""

    def leave(self, reason: str, clocks: Mapping[int, int] | None = None) -> None:
        """See `Membership`."""
