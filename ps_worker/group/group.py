"""The group of this process: its channel, its watch, and what ends it; formed when all ranks have met.

It must not know jobs beyond the name under which its ranks meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]

from ps_wire.errors import ConfigurationRefused, GroupBroken, UsageError
from ps_wire.process.ranks import Ranks
from ps_wire.spec.consistency import Consistency
from ps_wire.spec.plan import Partition, Plan
from ps_worker.group import bounded_group
from ps_worker.group.abort import Abort
from ps_worker.group.beside import Beside
from ps_worker.group.channel import TAG, Channel, Wires, cut
from ps_worker.group.clipped_reduce import ClippedReduce
from ps_worker.group.ending import Ending
from ps_worker.group.gradient_reduce import GradientReduce
from ps_worker.group.hosts import Hosts
from ps_worker.group.lent_gradients import FlatGradients, borrow, can_lend
from ps_worker.group.lines import RankLines
from ps_worker.group.lines import connect as connect_lines
from ps_worker.group.rendezvous import INTERFACE, Met
from ps_worker.group.stage_traffic import StageTable, StageTraffic
from ps_worker.group.step_header import Rider
from ps_worker.group.watch import Watch

CALL_LIMIT_S = 86400.0  # of gloo's own, whose end would cut all connections: `Abort` ends waits
SHM, GLOO, HOSTS = "shm", "gloo", "hosts"  # ways in which ranks reduce their gradients

Traffic: TypeAlias = Callable[
    [FlatGradients, Sequence[Partition], Sequence[int]], GradientReduce | ClippedReduce | StageTraffic
]


class Group:
    """The ranks of one worker, as one of them sees them.

    Attributes:
        ranks: which one this is.
        channel: to the others.
        ending: whether all are to end after a step.
        hosts: of the ranks.
        how: gradients are reduced, in a word: `REDUCES` has what chooses it.
        hosts_shards: each rank has the shard of its number in its process, whose partitions it owns.
        torch_group: a process group of torch's with these ranks, for scripts; None: the script has others.
        stages: another one, over which the stages of a pipeline send; None: this is no pipeline.
    """

    def __init__(
        self,
        ranks: Ranks,
        met: Met,
        *,
        lease_s: float,
        reduce: str,
        asked: Callable[[], bool],
        torch_group: dist.ProcessGroup | None = None,
        pipeline: bool = False,
        hosts_shards: bool = False,
    ) -> None:
        """Connects to the other ranks, and waits until they have.

        Args:
            ranks: which one this is.
            met: the ranks that are there.
            lease_s: of the worker.
            reduce: a row of `REDUCES`, or one that forces what it names.
            asked: whether this process was told to end.
            torch_group: that the script has made of these ranks.
            pipeline: the ranks are the stages of a pipeline, and reduce nothing.
            hosts_shards: each rank has the shard of its number in its process, whose partitions it owns.

        Raises:
            GroupBroken: a rank has gone meanwhile.
            ConfigurationRefused: the way to reduce that is wanted is not there; on all ranks.
            UsageError: stages cannot send over the process groups that the script has made.
        """
        self.ranks = ranks
        self.ending = Ending(asked)
        self._reduce = reduce
        self.hosts_shards = hosts_shards
        self._abort = Abort()
        self._made: dist.ProcessGroup | None = None
        try:
            # Kept for as long as its thread may wait in it: it must not be freed while it waits.
            self._wires = _gloo("ranks", met, ranks)
            self.torch_group = torch_group or self._make_torch_group(met.store, met.interface)
            self.stages = self._make_stages() if pipeline else None
            self._stage_wires = _gloo("stages", met, ranks) if pipeline else None
            lines = connect_lines(ranks, met.store, met.address)  # at last: the channel closes them
        except (RuntimeError, OSError) as error:
            raise GroupBroken(
                f"rank {ranks.rank} of {ranks.size} cannot connect to the others: {error}"
            ) from None
        # From now on ranks count each other's silence; to connect has limits of its own.
        self._watch = Watch(ranks, met.store, self._abort, lease_s=lease_s, hosts=met.hosts)
        self._met = met
        self._channels: list[Channel] = []
        self._besides: list[Beside] = []
        self.channel = self._channel_over(lines)
        self._watch.start()
        if self.stages is not None and self._stage_wires is not None:
            self.stages.attach(self._stage_wires, self.channel)
        self.hosts = Hosts(met.machines)
        self.how = GLOO if pipeline else REDUCES[reduce](self.channel, self.hosts)

    def traffic(
        self,
        table: int,
        plan: Plan,
        stage: StageTable | None,
        consistency: Consistency,
        rider: Rider | None = None,
        max_norm: float | None = None,
    ) -> Traffic:
        """The way of one table between ranks: all have all of it, or each a stage of a pipeline.

        Args:
            table: its number.
            plan: how it is cut.
            stage: what this rank holds of it; None: all of it.
            consistency: between workers.
            rider: what goes along with the header of each step of ranks that have all of it.
            max_norm: to which such ranks clip their mean; None: they do not.

        Returns:
            Makes it, of flat gradients, partitions, and the number of pieces in each. All ranks call it.
        """
        if stage is None:
            return partial(self._reducer, table, rider, max_norm)

        def make(gradients: FlatGradients, *_: object) -> StageTraffic:
            return StageTraffic(self.channel, self.ending, table, gradients.tensors, plan, stage, consistency)

        return make

    def _reducer(
        self,
        table: int,
        rider: Rider | None,
        max_norm: float | None,
        gradients: FlatGradients,
        partitions: Sequence[Partition],
        pieces: Sequence[int],
    ) -> GradientReduce | ClippedReduce:
        """The way of one table's gradients; see `GradientReduce`. All ranks call it.

        Raises:
            ConfigurationRefused: they are to be read where they lie, and a rank has no memory to lend.
        """
        channel, lent = self._channel_of_table(table), None
        if self.how in (SHM, HOSTS):
            near = self.hosts.near(self.ranks.rank)
            lent = borrow(channel, f"table {table}", gradients, near)
        if lent is None and self._reduce in (SHM, HOSTS):
            raise ConfigurationRefused(
                f"table {table}: a rank has no memory that the others can map (--group-reduce {self._reduce})"
            )
        self._besides.append(Beside(channel, self._abort, self.channel.compare_places))
        reduce = GradientReduce(
            channel,
            self.ending,
            table,
            gradients.tensors,
            partitions,
            pieces,
            lent,
            [it.shard for it in partitions] if self.hosts_shards else None,
            self.hosts if lent is not None and self.how == HOSTS else None,
            rider,
            self._besides[-1],
            self.channel,
        )
        if max_norm is None:
            return reduce
        return ClippedReduce(reduce, channel, gradients.tensors, partitions, max_norm)

    def when_broken(self, told: Callable[[GroupBroken], None]) -> None:
        """See `Abort.when_set`: for who waits for something else than other ranks."""
        self._abort.when_set(told)

    @property
    def healthy(self) -> bool:
        """Whether nothing has ended it: then the worker may renew its lease."""
        return self._abort.error is None

    def broken(self, reason: str) -> GroupBroken:
        """It ends, on all ranks; the error to raise."""
        return self.channel.broken(reason)

    def leave(self) -> bool:
        """This rank leaves; in order where nothing has ended the group.

        Returns:
            On the leader, whether all others have left in order; on the others, True.
        """
        all_left = self._watch.leave()
        if not self.healthy:
            for wires in (self._wires, self._stage_wires):
                if wires is not None:
                    cut(wires, self.ranks)
        for beside in self._besides:
            beside.close()
        for channel in self._channels:
            channel.close()
        if self._made is not None and self.healthy:
            if (
                dist.group.WORLD is self._made
            ):  # a script may have destroyed it, as Accelerate does at its end
                dist.destroy_process_group(self._made)
            self._made = None
        return all_left

    # -- inside ----------------------------------------------------------------------------------------

    def _channel_of_table(self, table: int) -> Channel:
        """A channel of its own: who talks over it may be beside the script, and wait. All ranks call it."""
        self.channel.share(f"connections for table {table}")
        store = PrefixStore(f"table {table}, {len(self._channels)}", self._met.store)
        try:
            lines = connect_lines(self.ranks, store, self._met.address)
            return self._channel_over(lines, self.channel.compare_places)
        except (RuntimeError, OSError) as error:
            raise self.broken(
                f"rank {self.ranks.rank} cannot connect to the others for table {table}: {error}"
            ) from None

    def _channel_over(self, lines: RankLines, look: Callable[[], object] = lambda: None) -> Channel:
        def look_around() -> None:
            self._watch.check_answered()
            look()

        made = Channel(
            self.ranks,
            self._wires,
            lines,
            self._abort,
            hosts=self._met.hosts,
            on_broken=self._tell,
            look=look_around,
            tag=TAG + len(self._channels),
        )
        self._channels.append(made)
        return made

    def _tell(self, reason: str) -> str | None:
        said = self._watch.reason()
        if said is None:
            self._watch.tell(reason)
        return said

    def _make_torch_group(self, store: Store, interface: str) -> dist.ProcessGroup | None:
        if dist.is_initialized():
            world = dist.group.WORLD
            return world if world is not None and dist.get_world_size() == self.ranks.size else None
        with _on(interface):
            dist.init_process_group(
                "gloo",
                store=PrefixStore("torch", store),
                rank=self.ranks.rank,
                world_size=self.ranks.size,
            )
        self._made = dist.group.WORLD
        return self._made

    def _make_stages(self) -> bounded_group.BoundedGroup:
        if self.torch_group is None or dist.get_world_size() != self.ranks.size:
            raise UsageError(
                f"a pipeline of {self.ranks.size} stages sends over torch's default process group, and the "
                f"script has made one of {dist.get_world_size()} ranks: connect before, or leave it out"
            )
        bounded_group.register()
        made: Any = dist.new_group(backend=bounded_group.BACKEND)
        stages: bounded_group.BoundedGroup = made
        return stages


def _auto(channel: Channel, hosts: Hosts) -> str:
    if hosts.apart and not hosts.shared:
        return GLOO
    lends = can_lend(channel, hosts.near(channel.ranks.rank))
    return (HOSTS if hosts.apart else SHM) if lends else GLOO


def _forced_shm(channel: Channel, hosts: Hosts) -> str:
    if hosts.apart or not can_lend(channel):
        raise ConfigurationRefused(
            f"the ranks of this group cannot map each other's memory (--group-reduce {SHM}): they are in "
            f"containers of their own or on several hosts, or no descriptor is left; use {GLOO} or auto"
        )
    return SHM


def _forced_hosts(channel: Channel, hosts: Hosts) -> str:
    if not hosts.apart or not can_lend(channel, hosts.near(channel.ranks.rank)):
        raise ConfigurationRefused(
            f"the ranks of this group are on one host, or those of one host cannot map each other's memory "
            f"(--group-reduce {HOSTS}): use auto"
        )
    return HOSTS


# What is said in PS_GROUP_REDUCE -> how gradients are reduced; each is called on all ranks.
REDUCES: Mapping[str, Callable[[Channel, Hosts], str]] = {
    "auto": _auto,
    SHM: _forced_shm,
    GLOO: lambda *_: GLOO,
    HOSTS: _forced_hosts,
}


def _gloo(name: str, met: Met, ranks: Ranks) -> Wires:
    with _on(met.interface):
        made: Any = ProcessGroupGloo(
            PrefixStore(name, met.store), ranks.rank, ranks.size, timeout=timedelta(seconds=CALL_LIMIT_S)
        )
    wires: Wires = made
    return wires


@contextmanager
def _on(interface: str) -> Iterator[None]:
    """Gloo takes this interface, unless the environment names one."""
    if INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[INTERFACE]
