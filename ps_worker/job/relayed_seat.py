"""The seat of a group in its job: the leader has it, and all ranks pass through tables and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ps_wire.errors import TableMismatch
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.spec.table import TableSpec, check_same
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_worker.group.channel import Channel, Said
from ps_worker.job.job_seat import Seat
from ps_worker.job.relayed_calls import RelayedCalls


class RelayedSeat:
    """The seat of one rank of a group.

    Attributes:
        calls: beside the stream.
        joined: as whom the group is in the job.
    """

    def __init__(self, channel: Channel, joined: pb.Joined, real: Seat | None) -> None:
        """Takes the leader's own seat; None on all other ranks."""
        self._channel = channel
        self._real = real
        self.joined = joined
        self.calls = RelayedCalls(channel, None if real is None else real.calls)

    @property
    def again(self) -> bool:
        """See `Seat`: a group never joins again."""
        return False

    @property
    def live_wanted(self) -> bool:
        """See `Seat`."""
        return self._real is not None and self._real.live_wanted

    @property
    def position_wanted(self) -> bool:
        """See `Seat`."""
        return self._real is not None and self._real.position_wanted

    # -- all ranks together ----------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """See `Seat`; all ranks must make the same.

        Raises:
            TableMismatch: they do not; on all ranks.
        """

        def make(heard: list[Said]) -> Said:
            for rank, said in enumerate(heard, 1):
                theirs = table_from_proto(spec_pb2.Table.FromString(said.blob))
                try:
                    check_same(spec, theirs)
                except TableMismatch as error:
                    raise TableMismatch(
                        f"rank {rank} of this group has another model or optimizer than rank 0: "
                        f"{error.message}",
                        **error.facts,
                    ) from None
            assert self._real is not None
            self._real.make_table(spec)
            return Said()

        own = table_to_proto(spec).SerializeToString()
        self._channel.relay(f"wrap() of table {spec.number}", make, Said({}, own))

    def wait_made(self, table: int) -> pb.TableMade:
        """See `Seat`; all ranks hear whether the worker's weights start it."""
        real = self._real

        def wait(_: list[Said]) -> Said:
            assert real is not None
            return Said({}, real.wait_made(table).SerializeToString())

        return pb.TableMade.FromString(self._channel.relay(f"table {table}, which is made", wait).blob)

    def wait_started(self, table: int) -> int | None:
        """See `Seat`; all ranks hear where the worker has to bring its weights first."""
        real = self._real

        def wait(_: list[Said]) -> Said:
            assert real is not None
            return Said({"step": real.wait_started(table)})

        step: int | None = self._channel.relay(f"table {table}, which starts", wait).fields["step"]
        return step

    def finish(self, upload_final: Callable[[], bytes]) -> bool:
        """See `Seat`."""
        real = self._real

        def finish(_: list[Said]) -> Said:
            assert real is not None
            return Said({"kept": real.finish(upload_final)})

        return bool(self._channel.relay("finish()", finish).fields["kept"])

    # -- what the leader does alone --------------------------------------------------------------------

    def uploaded(self, table: int) -> None:
        """See `Seat`."""
        if self._real is not None:
            self._real.uploaded(table)

    def put_live(self, blob: bytes, step: int) -> None:
        """See `Seat`."""
        if self._real is not None:
            self._real.put_live(blob, step)

    def put_position(self, blob: bytes, step: int) -> None:
        """See `Seat`."""
        if self._real is not None:
            self._real.put_position(blob, step)

    def put_note(self, blob: bytes) -> None:
        """See `Seat`."""
        if self._real is not None:
            self._real.put_note(blob)

    def whom(self) -> list[str]:
        """See `Seat`."""
        return [] if self._real is None else self._real.whom()

    def leave(self, reason: str, clocks: Mapping[int, int] | None = None) -> None:
        """See `Seat`."""
        if self._real is not None:
            self._real.leave(reason, clocks)
