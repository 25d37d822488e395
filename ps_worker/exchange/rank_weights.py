"""The weights of a table's next step on their way to all ranks of a group, to owners and from these.

    all at once   while the script waits for weights
    by bucket     beside the script, those of the first layers first, and the script waits for those that it
                  needs next; where all ranks want that, as they have said with the step's header

They are shown when those of all partitions are on all ranks.

It must not know frames, nor gradients. Used by the thread that trains, but for what goes by bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from ps_wire.spec.plan import Partition
from ps_worker.exchange.in_flight import InFlight, Missing
from ps_worker.exchange.rank_traffic import RankTraffic
from ps_worker.exchange.traffic_listener import TrafficListener
from ps_worker.group.arrived_weights import Versions, spread_of
from ps_worker.group.beside import Beside
from ps_worker.memory.table_memory import TableMemory

Told = Callable[[Missing], None] | None


class RankWeights:
    """The weights of one table that were asked for, and are not known to be on all ranks."""

    def __init__(
        self,
        ranks: RankTraffic,
        in_flight: InFlight,
        memory: TableMemory,
        traffic: TrafficListener | None,
    ) -> None:
        """Nothing was asked for.

        Args:
            ranks: brings them from owners to all ranks.
            in_flight: brings this rank's own.
            memory: where they lie.
            traffic: is told of them.
        """
        self._ranks = ranks
        self._in_flight = in_flight
        self._memory = memory
        self._traffic = traffic
        self._partitions = memory.partitions
        self._owned = frozenset(ranks.owned)
        self._last_turn = max((it.bucket for it in memory.partitions), default=-1)
        self._clock: int | None = None  # of those that were asked for
        self._told: Told = None

    def begin(self, clock: int) -> None:
        """They are about to be asked for, at this clock."""
        self._clock = clock

    def go_on(self) -> None:
        """They were asked for, and leave their owners as they come, if they go by bucket.

        Raises:
            PsError: the group has ended.
        """
        if (beside := self._beside) is not None:
            for bucket in range(self._last_turn + 1):
                beside.put(self._turn_of(bucket), partial(self._bring, bucket))

    @property
    def pending(self) -> bool:
        """Whether some may not be here."""
        return self._clock is not None

    @property
    def arrived(self) -> bool:
        """Whether all are here; those that do not go by bucket are not, before they were waited for."""
        beside = self._beside
        return self._clock is None or (beside is not None and beside.idle)

    def arrive_within(self, limit_s: float) -> bool:
        """Waits for those that go by bucket; whether they are here before the limit. Raises as `wait`."""
        beside = self._beside
        return beside is None or beside.over_within(limit_s)

    def wait(self, told: Told, wanted: frozenset[int] | None) -> None:
        """Waits for them.

        Args:
            told: is told now and then what is missing.
            wanted: partitions that are enough; None: all.

        Raises:
            PsError: some cannot come; on all ranks.
        """
        self._told = told
        beside = self._beside
        if beside is None:
            found = self._spread(None)
            self._came(self._partitions, found.newest)
            self._tell(found.clock, found.spread)
        elif wanted is None:
            beside.wait()
        elif wanted:
            beside.wait_turn(max(self._turn_of(self._partitions[index].bucket) for index in wanted))
        if beside is None or wanted is None:
            self._clock = None

    # -- inside ----------------------------------------------------------------------------------------

    @property
    def _beside(self) -> Beside | None:
        """Makes the calls that bring them, where they go by bucket."""
        return self._ranks.beside if self._clock is not None and self._ranks.by_bucket else None

    def _turn_of(self, bucket: int) -> int:
        return self._last_turn - bucket

    def _bring(self, bucket: int) -> None:
        """On the thread beside: the weights of one bucket."""
        found = self._spread(bucket)
        self._came([it for it in self._partitions if it.bucket == bucket], found.newest)
        if not bucket:
            self._tell(found.clock, spread_of(self._in_flight.versions))

    def _spread(self, bucket: int | None) -> Versions:
        assert self._clock is not None
        mine = None
        if bucket is not None:
            mine = frozenset(index for index in self._owned if self._partitions[index].bucket == bucket)

        def arrive() -> Sequence[int]:
            self._in_flight.wait_pulled(self._told, mine)
            return self._in_flight.versions

        with ExitStack() as stack:
            return self._ranks.spread(
                self._clock,
                arrive,
                lambda version: self._memory.of(version).tensors,
                lambda: stack.enter_context(self._memory.held()),
                bucket,
            )

    def _came(self, partitions: Sequence[Partition], versions: Sequence[int]) -> None:
        """Those of these partitions are on all ranks."""
        self._in_flight.put({it.index: at for it, at in zip(partitions, versions, strict=True)})
        for partition in partitions:
            if partition.index not in self._owned:
                self._memory.on_arrival(partition)

    def _tell(self, clock: int, spread: int) -> None:
        """Those of all partitions are on all ranks, with that spread at that clock: they are shown."""
        self._memory.show(max(self._in_flight.versions, default=0))
        self._in_flight.spread_over_ranks(spread)
        if self._traffic is not None:
            self._traffic.spread(clock - 1, spread)
