"""Calls of a group to the coordinator: the leader makes them, and all ranks get the answer, or the error.

Only calls of the script's thread: the ranks of a group make them at the same places. What brings no answer is
made by the leader alone. It must not know the stream.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ps_wire.errors import UsageError
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.group.channel import Channel, Said
from ps_worker.job.job_seat import Asks
from ps_worker.model import model_table


class RelayedCalls:
    """The calls of one rank of a group."""

    def __init__(self, channel: Channel, real: Asks | None) -> None:
        """Takes the leader's own calls; None on all other ranks."""
        self._channel = channel
        self._real = real

    # -- answers that all ranks get --------------------------------------------------------------------

    def share(self, request: pb.ShareRequest) -> pb.ShareReply:
        """See `Asks`."""
        what = f"epoch {request.epoch} of loader {request.loader}"
        return pb.ShareReply.FromString(self._blob(what, lambda it: _wire(it.share(request))))

    def begin_epoch(self, epoch: int, *, loop: int, stop: int) -> pb.EpochReply:
        """See `Asks`."""
        what = f"the beginning of epoch {epoch}"
        return pb.EpochReply.FromString(
            self._blob(what, lambda it: _wire(it.begin_epoch(epoch, loop=loop, stop=stop)))
        )

    def stop_job(self, reason: str) -> pb.EpochReply:
        """See `Asks`."""
        return pb.EpochReply.FromString(self._blob("stop_job()", lambda it: _wire(it.stop_job(reason))))

    def kept(self, table: int) -> dict[str, torch.Tensor]:
        """See `Asks`."""
        what = f"what the job keeps with table {table}"
        return model_table.unpack(self._blob(what, lambda it: model_table.pack(it.kept(table))))

    def saved(self) -> dict[str, torch.Tensor]:
        """See `Asks`."""
        return model_table.unpack(self._blob("its snapshot", lambda it: model_table.pack(it.saved())))

    def position(self, *, live: bool) -> tuple[dict[str, torch.Tensor], dict[int, int]]:
        """See `Asks`."""

        def ask(_: list[Said]) -> Said:
            assert self._real is not None
            tensors, clocks = self._real.position(live=live)
            return Said({"clocks": sorted(clocks.items())}, model_table.pack(tensors) if tensors else b"")

        said = self._channel.relay("the position of the job", ask)
        clocks = {int(table): int(clock) for table, clock in said.fields["clocks"]}
        return (model_table.unpack(said.blob) if said.blob else {}), clocks

    # -- what the leader does alone --------------------------------------------------------------------

    def put_state(self, name: str, blob: bytes) -> None:
        """See `Asks`."""
        if self._real is not None:
            self._real.put_state(name, blob)

    def wait_state(self, name: str, at_least: bytes, limit_s: float) -> bool:
        """See `Asks`."""
        return self._real is None or self._real.wait_state(name, at_least, limit_s)

    def use(self, request: pb.UseRequest) -> None:
        """See `Asks`."""
        if self._real is not None:
            self._real.use(request)

    def epochs(self) -> list[pb.EpochUse]:
        """See `Asks`."""
        return [] if self._real is None else self._real.epochs()

    def behind(self) -> list[str]:
        """See `Asks`."""
        return [] if self._real is None else self._real.behind()

    def collect(self, request: pb.CollectRequest, **_: float) -> pb.CollectReply:
        """Refuses: such a call would have to ask all ranks first.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{request.form} in a group of ranks: calls of all workers are not built for groups; among its "
            "ranks, use torch.distributed on worker.group"
        )

    def _blob(self, what: str, ask: Callable[[Asks], bytes]) -> bytes:
        def answer(_: list[Said]) -> Said:
            assert self._real is not None
            return Said({}, ask(self._real))

        return self._channel.relay(what, answer).blob


def _wire(message: pb.ShareReply | pb.EpochReply) -> bytes:
    return message.SerializeToString()
