"""The group of this process: its channel, its watch, and what ends it; formed when all ranks have met.

It must not know jobs beyond the name under which its ranks meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]

from ps_wire.errors import ConfigurationRefused, GroupBroken, UsageError
from ps_wire.process.ranks import Ranks
from ps_wire.spec.consistency import Consistency
from ps_wire.spec.plan import Partition, Plan
from ps_worker.group import alike, bounded_group
from ps_worker.group.abort import Abort
from ps_worker.group.beside import Beside
from ps_worker.group.channel import TAG, Channel, Wires, cut
from ps_worker.group.clipped_reduce import ClippedReduce
from ps_worker.group.devices import gpus
from ps_worker.group.devices.collectives import DeviceCalls
from ps_worker.group.ending import Ending
from ps_worker.group.gradient_reduce import GradientReduce, OnDevice
from ps_worker.group.hosts import Hosts
from ps_worker.group.lent_gradients import FlatGradients, borrow, can_lend
from ps_worker.group.lines import RankLines
from ps_worker.group.lines import connect as connect_lines
from ps_worker.group.rendezvous import INTERFACE, Met
from ps_worker.group.stage_traffic import StageTable, StageTraffic
from ps_worker.group.step_header import Rider
from ps_worker.group.watch import Watch

CALL_LIMIT_S = 86400.0  # of gloo's own, whose end would cut all connections: `Abort` ends waits
SHM, GLOO, HOSTS, NCCL = "shm", "gloo", "hosts", "nccl"  # ways in which ranks reduce their gradients
AUTO = "auto"
# Torch's NCCL else ends the process where a rank has gone. Here `Abort` ends waits, and `abort` calls.
UNWATCHED = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}

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
        on_gpus: each rank can have a GPU of its own: tables that are there are reduced there.
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
        given: Mapping[str, str] | None = None,
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
            given: settings that all ranks have to have alike, by option.

        Raises:
            GroupBroken: a rank has gone meanwhile.
            JobMismatch: they are not alike; on all ranks.
            ConfigurationRefused: the way to reduce that is wanted is not there; on all ranks.
            UsageError: stages cannot send over the process groups that the script has made.
        """
        self.ranks = ranks
        self.ending = Ending(asked)
        self._reduce = reduce
        self.hosts_shards = hosts_shards
        self._abort = Abort()
        self._made: dist.ProcessGroup | None = None
        self._met = met
        self._collectives: DeviceCalls | None = None  # between GPUs; made for the first table there
        try:
            # Kept for as long as its thread may wait in it: it must not be freed while it waits.
            self._wires = _gloo("ranks", met, ranks)
            self.torch_group = torch_group or self._make_torch_group(met.store, met.interface)
            self.stages = self._make_stages() if pipeline else None
            self._stage_wires = _gloo("stages", met, ranks) if pipeline else None
            lines = connect_lines(ranks, met.store, met.address)  # at last: the channel closes them
        except (RuntimeError, OSError) as error:
            self._end_torch_group()
            raise GroupBroken(
                f"rank {ranks.rank} of {ranks.size} cannot connect to the others: {error}"
            ) from None
        # From now on ranks count each other's silence; to connect has limits of its own.
        self._watch = Watch(ranks, met.store, self._abort, lease_s=lease_s, hosts=met.hosts)
        self._channels: list[Channel] = []
        self._besides: list[Beside] = []
        self.channel = self._channel_over(lines)
        if self._made is not None:  # a script that waits in one of its calls is freed, too
            made: Any = self._made
            self._abort.when_set(lambda _: cut(made, ranks))
        self._watch.start()
        if self.stages is not None and self._stage_wires is not None:
            self.stages.attach(self._stage_wires, self.channel)
        self.hosts = Hosts(met.machines)
        self._gpus = gpus.here()
        try:
            alike.check(self.channel, met.hosts, given or {})
            self.how = GLOO if pipeline else REDUCES[reduce](self.channel, self.hosts)
            self.on_gpus = self.how == NCCL or (
                reduce == AUTO and not pipeline and not gpus.lacking(self.channel, self.hosts, self._gpus)
            )
        except BaseException:
            self.leave()
            raise

    def device_of(self, table: int, values: Iterable[torch.Tensor]) -> torch.device | None:
        """The GPU on which a table is reduced. All ranks call it: each of them has one then, or none has.

        Args:
            table: its number.
            values: of its parameters.

        Raises:
            ConfigurationRefused: it is to be one, and is none.
        """
        if not self.on_gpus:
            return None
        device = gpus.of(values)
        name = None if device is None else self._gpus[device.index or 0]
        why = gpus.shared(self.channel, self.hosts, table, name)
        if why and self._reduce == NCCL:
            raise ConfigurationRefused(f"table {table} cannot be reduced over {NCCL} (--group-reduce): {why}")
        return None if why else device

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
            rider: what goes along with the header of each step, or with the words of stages on their weights.
            max_norm: to which such ranks clip their mean; None: they do not.

        Returns:
            Makes it, of flat gradients, partitions, and the number of pieces in each. All ranks call it.
        """
        if stage is None:
            return partial(self._reducer, table, rider, max_norm)

        def make(gradients: FlatGradients, *_: object) -> StageTraffic:
            return StageTraffic(
                self.channel, self.ending, table, gradients.tensors, plan, stage, consistency, rider
            )

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
        channel = self._channel_of_table(table)
        lent, device = None, self._on_device(gradients)
        if device is None and self.how in (SHM, HOSTS):
            near = self.hosts.near(self.ranks.rank)
            lent = borrow(channel, f"table {table}", gradients, near)
        if lent is None and self._reduce in (SHM, HOSTS):
            raise ConfigurationRefused(
                f"table {table}: a rank has no memory that the others can map (--group-reduce {self._reduce})"
            )
        beside = None
        if device is None:  # whose calls all tables share, in one order
            beside = Beside(channel, self._abort, self.channel.compare_places)
            self._besides.append(beside)
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
            device,
            beside,
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

    def end_with(self, reason: str) -> None:
        """This rank's script has ended with an error: all ranks end, unless they do so at a common step."""
        if not self.ending.agreed:
            self.broken(f"rank {self.ranks.rank} has ended: {reason}")

    def leave(self) -> bool:
        """This rank leaves; in order where nothing has ended the group.

        Returns:
            On the leader, whether all others have left in order; on the others, True.
        """
        all_left = self._watch.leave(agreed=self.ending.agreed)
        if not self.healthy:
            for wires in (self._wires, self._stage_wires):
                if wires is not None:
                    cut(wires, self.ranks)
        for beside in self._besides:
            beside.close()
        if self._collectives is not None:  # also in order: the others have left, or wait for nothing
            self._collectives.abort()
        for channel in self._channels:
            channel.close()
        if self.healthy:
            self._end_torch_group()
        return all_left

    def check(self) -> None:
        """Raises GroupBroken where something has ended it."""
        self.channel.check()

    # -- inside ----------------------------------------------------------------------------------------

    def _channel_of_table(self, table: int) -> Channel:
        """A channel of its own: who talks over it may be beside the script, and wait. All ranks call it."""
        self.channel.share(f"connections for table {table}")
        store = PrefixStore(f"table {table}, {len(self._channels)}", self._met.store)
        try:
            lines = connect_lines(self.ranks, store, self._met.address, self._look)
            return self._channel_over(lines, self.channel.compare_places)
        except (RuntimeError, OSError) as error:
            raise self.broken(
                f"rank {self.ranks.rank} cannot connect to the others for table {table}: {error}"
            ) from None

    def _look(self) -> None:
        """Raises GroupBroken where the group has ended, or the store does not answer."""
        self._watch.check_answered()
        self.check()

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

    def _on_device(self, gradients: FlatGradients) -> OnDevice | None:
        """Where a table is reduced whose gradients have memory on a GPU."""
        if gradients.on_device is None:
            return None
        if self._collectives is None:
            self._collectives = _nccl(self._met, self.ranks)
        return OnDevice(self._collectives, gradients.on_device)

    def _tell(self, reason: str) -> str | None:
        said = self._watch.reason()
        if said is None:
            self._watch.tell(reason)
        return said

    def _end_torch_group(self) -> None:
        if self._made is not None and dist.group.WORLD is self._made:  # else a script has, as Accelerate does
            dist.destroy_process_group(self._made)
        self._made = None

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


def _forced_nccl(channel: Channel, hosts: Hosts) -> str:
    if why := gpus.lacking(channel, hosts, gpus.here()):
        raise ConfigurationRefused(
            f"the ranks of this group have not a GPU each (--group-reduce {NCCL}): {why}; use {AUTO}"
        )
    return NCCL


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
    AUTO: _auto,
    SHM: _forced_shm,
    GLOO: lambda *_: GLOO,
    HOSTS: _forced_hosts,
    NCCL: _forced_nccl,
}


def _gloo(name: str, met: Met, ranks: Ranks) -> Wires:
    with _on(met.interface):
        made: Any = ProcessGroupGloo(
            PrefixStore(name, met.store), ranks.rank, ranks.size, timeout=timedelta(seconds=CALL_LIMIT_S)
        )
    wires: Wires = made
    return wires


def _nccl(met: Met, ranks: Ranks) -> DeviceCalls:
    """Connects when it is first called, on the GPUs that the tensors are on then."""
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415 - not in torch's build for CPUs

    with _set(**UNWATCHED):
        make: Any = ProcessGroupNCCL
        made = make(
            PrefixStore("nccl", met.store), ranks.rank, ranks.size, timeout=timedelta(seconds=CALL_LIMIT_S)
        )
    collectives: DeviceCalls = made
    return collectives


def _on(interface: str) -> AbstractContextManager[None]:
    """Gloo takes this interface, unless the environment names one."""
    return _set(**{INTERFACE: interface})


@contextmanager
def _set(**variables: str) -> Iterator[None]:
    """The environment has these, unless it names others."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)  # threads of a test may have had the same idea
