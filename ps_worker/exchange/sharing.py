"""The handshake between a worker and its shards over the memory of one table that they share.

Where a shard cannot share its weights of a table that would be mapped, or the worker cannot map them, they
arrive as payload, in the memory where they would have been seen. It must not know pushes, pulls or
connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ps_wire.errors import ConfigurationRefused, ConnectionLost, PsError
from ps_wire.frames import frame as wire
from ps_worker.memory.table_memory import TableMemory, weights_changed

logger = logging.getLogger("ps_worker")


class SharingHandshake:
    """The SHARE frames of one table, to and from its shards, and what follows from them for its memory.

    Its state is the memory's: which descriptors shards get, and what is mapped.
    """

    def __init__(
        self,
        table: int,
        memory: TableMemory,
        shard_of: Sequence[int],
        tell: Callable[[tuple[int, ...]], None],
    ) -> None:
        """Tells nobody yet.

        Args:
            table: its number, for people.
            memory: of the table.
            shard_of: by partition, the shard that holds it.
            tell: sends these descriptors to all shards; none: they let go of what they map.
        """
        self._table = table
        self._memory = memory
        self._shard_of = tuple(shard_of)
        self._tell = tell

    def share(self) -> None:
        """Tells the shards, which have opened the table by now, where its memory is, if they can map it."""
        if self._memory.descriptors:
            self._tell(self._memory.descriptors)

    def check_written(self) -> None:
        """Looks at all mapped weights whether the script has written into them; some 20 ms per GB.

        Raises:
            WeightsChanged: it has, and it is undone.
        """
        if self._memory.written():
            self._memory.restore()
            raise weights_changed("a parameter")

    def own(self, *, ended: bool = False) -> None:
        """Weights stay as they are from now on, and shards let go of this worker's memory.

        Before it leaves the gates, where others may train on; or once the job has `ended`.

        Raises:
            ConfigurationRefused: the system has no memory or mapping left; it may be called again.
        """
        if self._memory.mapped:
            try:
                self._memory.own_all(ended=ended)
            except OSError as error:
                raise self.cannot_keep(error) from None
            self._tell(())

    def cannot_keep(self, error: OSError) -> ConfigurationRefused:
        """Why weights go on showing what shards write."""
        return ConfigurationRefused(
            f"table {self._table}: its weights cannot be kept while shards write others: {error.strerror}. "
            "This host has no memory or no mappings left (vm.max_map_count)"
        )

    def receive(self, frame: wire.Frame) -> None:
        """A shard's halves. Without any it has none, or could not take what is shared, and ends the stream.

        Raises:
            ConnectionLost: they cannot be mapped here. The next connection shares nothing.
        """
        try:
            if len(frame.descriptors) < frame.version:
                raise ConnectionLost("descriptors were lost: is their limit reached?")
            if frame.version and self._memory.mapped:
                self._memory.lay(self._shard_of[frame.partition], frame.descriptors)
                return
        except (PsError, OSError) as error:
            self._give_up(f"cannot be mapped ({error})")
            raise ConnectionLost(f"shared memory: {error}") from None
        self._give_up("are not shared by a shard that has no descriptors or memory left")

    def _give_up(self, why: str) -> None:
        """The next connection brings all that is under way as payload."""
        self._memory.withhold_descriptors()
        if self._memory.mapped:
            logger.warning("the weights of table %d %s: they are copied", self._table, why)
