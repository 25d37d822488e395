"""What a worker and its shards tell each other of memory that they share: a base of `Exchange`.

Where a shard cannot share its weights of a table that would be mapped, or the worker cannot map them, they
arrive as payload, in the memory where they would have been seen. It must not know pushes or pulls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ps_wire.errors import ConfigurationRefused, ConnectionLost, PsError
from ps_wire.frames import frame as wire
from ps_wire.spec.plan import Partition
from ps_worker.memory.table_memory import TableMemory, weights_changed
from ps_worker.transport.connection import Connection

logger = logging.getLogger("ps_worker")


class MemorySharing:
    """See the module's docstring."""

    memory: TableMemory
    partitions: Sequence[Partition]
    number: int
    _connections: Sequence[Connection]
    _frame: Callable[..., wire.Frame]

    def share(self) -> None:
        """Tells the shards, which have opened the table by now, where its memory is, if they can map it."""
        for frame in self._shared():
            for connection in self._connections:
                connection.send(frame)

    def _shared(self) -> list[wire.Frame]:
        descriptors = self.memory.descriptors
        if not descriptors:
            return []
        return [self._frame(wire.Kind.SHARE, version=len(descriptors), descriptors=descriptors)]

    def check_written(self) -> None:
        """Looks at all mapped weights whether the script has written into them; some 20 ms per GB.

        Raises:
            WeightsChanged: it has, and it is undone.
        """
        if self.memory.written():
            self.memory.restore()
            raise weights_changed("a parameter")

    def own(self, *, ended: bool = False) -> None:
        """Weights stay as they are from now on, and shards let go of this worker's memory.

        Before it leaves the gates, where others may train on; or once the job has `ended`.

        Raises:
            ConfigurationRefused: the system has no memory or mapping left; it may be called again.
        """
        if self.memory.mapped:
            try:
                self.memory.own_all(ended=ended)
            except OSError as error:
                raise self.cannot_keep(error) from None
            for connection in self._connections:
                connection.send(self._frame(wire.Kind.SHARE))

    def cannot_keep(self, error: OSError) -> ConfigurationRefused:
        """Why weights go on showing what shards write."""
        return ConfigurationRefused(
            f"table {self.number}: its weights cannot be kept while shards write others: {error.strerror}. "
            "This host has no memory or no mappings left (vm.max_map_count)"
        )

    def _take_share(self, frame: wire.Frame) -> None:
        """A shard's halves. Without any it has none, or could not take what is shared, and ends the stream.

        Raises:
            ConnectionLost: they cannot be mapped here. The next connection shares nothing.
        """
        try:
            if len(frame.descriptors) < frame.version:
                raise ConnectionLost("descriptors were lost: is their limit reached?")
            if frame.version and self.memory.mapped:
                self.memory.lay(self.partitions[frame.partition].shard, frame.descriptors)
                return
        except (PsError, OSError) as error:
            self._give_up(f"cannot be mapped ({error})")
            raise ConnectionLost(f"shared memory: {error}") from None
        self._give_up("are not shared by a shard that has no descriptors or memory left")

    def _give_up(self, why: str) -> None:
        """The next connection brings all that is under way as payload."""
        self.memory.descriptors = ()
        if self.memory.mapped:
            logger.warning("the weights of table %d %s: they are copied", self.number, why)
