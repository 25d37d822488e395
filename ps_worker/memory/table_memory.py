"""The flat memory of a table on a worker: gradients and weights. Shards on the same host may map both.

    private   nothing is shared; where weights come while those before are read, they have two places, too
    lent      nothing is shared, but gradients leave by reference (plain BSP, over a Unix socket)
    copied    shards map both: they read gradients, and write weights where the worker wants them
    mapped    shards map gradients; the worker maps the two halves in which shards have the weights of even
              and of odd versions (plain BSP), so that nothing is copied. What a shard cannot share arrives as
              in `private`, in the half of its version.

Parameters that show mapped weights move from half to half, which costs a call for each. Where they are small,
they stay in one place instead, the front, and the half of each version is mapped there.

It must not know frames, nor when who may write: that is `exchange`'s affair.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

import torch

from ps_wire.errors import FrameMalformed, WeightsChanged
from ps_wire.frames.buffer import as_tensor
from ps_wire.sockets import shared_memory
from ps_wire.sockets.lent_memory import lend
from ps_wire.sockets.shared_memory import Layout, SliceLayout
from ps_wire.spec.codec import AS_THEY_ARE, travelling
from ps_wire.spec.plan import Partition, Plan
from ps_wire.spec.table import PAGE_BYTES
from ps_worker.memory.device_memory import DeviceMemory
from ps_worker.memory.flat import FlatBuckets
from ps_worker.memory.os_memory import OverlaidMemory, SharedMemory
from ps_worker.memory.staging import Stagings

WINDOW_BYTES = 4 << 20  # looked at in a step, at least: 0.1 ms
FOUND_WITHIN = 50  # steps: what a script has written to memory of shards; half of them show the other half
SMALL_BYTES = 8 << 10  # a parameter on average: it moves in the time that so many of its bytes are found anew
SLICE_BYTES = 64 << 10  # of a bucket on a shard: it is mapped in the time in which so much would be copied


class Sharing(Enum):
    """The extent of a table's memory that shards may map: none, the gradients, or the weights, too."""

    PRIVATE = "private"
    LENT = "lent"
    COPIED = "copied"
    MAPPED = "mapped"


class TableMemory:
    """The memory of one table: gradients, weights, and what of shards' memory is laid over them.

    `_lock` guards what is laid over halves, and where: connections of several shards lay at once, while the
    script's thread gives up sharing. It is held while the kernel maps, and while weights come from other
    ranks of a group: a connection that has something to lay waits for them.

    Attributes:
        gradients: where hooks copy to; forked children see zeros there.
        weights: those of the version shown last: what parameters on the CPU are views of.
        gradients_descriptor: of gradients, where other processes may map them.
        descriptors: of gradients and, unless they are mapped, weights, for shards on this host; empty where
            they cannot map them.
        stagings: copy between flat memory and parameters.
        partitions: of the table.
        on_device: where ranks of a group reduce gradients and gather weights, if they do so on a device.
        on_arrival: told, on a receiving thread, of each partition whose weights are here; see `watch`.
    """

    def __init__(
        self,
        plan: Plan,
        sharing: Sharing,
        *,
        lends: bool = False,
        held: Collection[int] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Allocates zeros; other ranks of a group on this host may map gradients where it `lends` them.

        Args:
            plan: of the table.
            sharing: what of it.
            lends: as above.
            held: buckets of which this process has parameters: no page of the others is ever touched, nor is
                anything of shards laid there. None: all.
            device: on which ranks of a group reduce gradients and gather weights; None: on the host.

        Raises:
            OSError: the system has no descriptor left.
        """
        self._plan = plan
        self._held = held
        self.partitions = [plan.partition(index) for index in range(plan.num_partitions)]
        self.on_arrival: Callable[[Partition], None] = lambda _: None
        self._lock = threading.RLock()
        self._laid: dict[int, int] = {}  # shard -> inode of what it has laid over half 0
        self._windows: list[tuple[int, int]] = []  # of what is laid: where, and how many bytes
        self._halves: list[OverlaidMemory] = []
        self._shards = {partition.shard for partition in self.partitions}
        self._sources: dict[int, tuple[int, ...]] = {}  # shard -> descriptors of ours, where there is a front
        weakref.finalize(self, _close, self._sources)
        self._front: tuple[OverlaidMemory, FlatBuckets] | None = None  # made when it is first asked for
        self._shows_front = False
        self.descriptors: tuple[int, ...] = ()
        gradients = weights = None
        self.gradients_descriptor: int | None = None
        nbytes = Layout(plan).nbytes
        self._stays = stays(plan)
        if lends or sharing is not Sharing.PRIVATE:
            gradients = SharedMemory(nbytes, wiped=True)
            self.gradients_descriptor = gradients.descriptor
            if sharing is Sharing.LENT:
                lend(gradients, gradients.descriptor)
            elif sharing is not Sharing.PRIVATE:
                self.descriptors = (gradients.descriptor,)
        if sharing is Sharing.COPIED:
            weights = SharedMemory(nbytes)
            self.descriptors += (weights.descriptor,)
        self.gradients = FlatBuckets(plan, memory=gradients, private=True)
        if sharing is Sharing.MAPPED:
            self._halves = [OverlaidMemory(nbytes) for _ in range(2)]
            self._flats = [FlatBuckets(plan, memory=half) for half in self._halves]
        else:
            self._flats = [FlatBuckets(plan, memory=weights, held=held)]
        self.weights = self._flats[0]
        pinned = [self.gradients] if self._halves else [self.gradients, *self._flats]  # a pin is a write
        mine = [it.index for it in plan.buckets if held is None or it.index in held]
        self.stagings = Stagings([flat.tensors[index] for flat in pinned for index in mine])
        self.on_device = None if device is None else DeviceMemory.of(plan, device, self.stagings)

    def watch(self, on_arrival: Callable[[Partition], None]) -> None:
        """This is told of partitions whose weights are here from now on, in place of who was before."""
        self.on_arrival = on_arrival

    def part(self, version: int) -> None:
        """From now on weights of even and of odd versions lie apart: one is read while the next one comes.

        For memory that is not shared, while no weights are under way. Called again, it does nothing.

        Args:
            version: of the weights that are here.
        """
        if len(self._flats) > 1:
            return
        flats = [self.weights, FlatBuckets(self._plan, held=self._held)]
        self._flats = flats if version % 2 == 0 else flats[::-1]

    @property
    def apart(self) -> bool:
        """Whether weights of even and of odd versions lie apart."""
        return len(self._flats) > 1

    def withhold_descriptors(self) -> None:
        """No shard gets descriptors any more; what is laid stays until its weights come as payload."""
        self.descriptors = ()

    def of(self, version: int) -> FlatBuckets:
        """Where weights of a version lie."""
        return self._flats[version % len(self._flats)]

    @property
    def gathered(self) -> FlatBuckets:
        """Where gradients of parameters are copied to."""
        return self.gradients if self.on_device is None else self.on_device.gradients

    def shown(self, version: int | None = None) -> FlatBuckets:
        """Where parameters find weights: those of a version, or those that came last."""
        if self.on_device is not None:
            return self.on_device.weights
        return self.weights if version is None else self.of(version)

    def landing(self, partition: Partition, version: int, nbytes: int) -> memoryview | None:
        """Where weights that come may be received; None: elsewhere, and `put` takes them."""
        if partition.shard in self._laid:
            return None
        memory = self.of(version).bytes_of(partition)
        return memory if len(memory) == nbytes else None

    def put(
        self, partition: Partition, version: int, payload: bytes | memoryview, codec: int = AS_THEY_ARE
    ) -> None:
        """Weights of a partition have come, where they were to land or elsewhere; rounded ones are widened.

        Raises:
            FrameMalformed: they are not as many as the partition has, or their codec is unknown.
            OSError: see `own`.
        """
        weights = self.of(version).partition(partition)
        dtype = travelling(codec, weights.dtype)
        if dtype is None or len(payload) != weights.numel() * dtype.itemsize:
            raise FrameMalformed(
                f"partition {partition.index} came with {len(payload)} bytes of codec {codec}"
            )
        if partition.shard in self._laid:  # over another carrier than before
            self.own(partition.shard)
        arrived = as_tensor(payload, dtype)
        if arrived.data_ptr() != weights.data_ptr():
            weights.copy_(arrived)

    def show(self, version: int) -> None:
        """All weights of this version are here."""
        self.weights = self.of(version)

    @property
    def staging(self) -> FlatBuckets:
        """Where the first weights are put, on their way to the shards."""
        return self.gradients if self._halves else self.weights

    def staged(self, partitions: Iterable[Partition], views: Iterable[torch.Tensor]) -> None:
        """The first weights are on the shards: where they were staged there are zeros again.

        Args:
            partitions: that this process has loaded.
            views: of staging memory that it has written.
        """
        if self._halves:
            for written in (*map(self.gradients.partition, partitions), *views):
                written.zero_()

    # -- mapped ----------------------------------------------------------------------------------------

    @property
    def mapped(self) -> bool:
        """Whether weights lie in memory of shards."""
        return bool(self._halves)

    @contextmanager
    def held(self) -> Iterator[frozenset[int]]:
        """Gives the shards whose weights are seen where they have them; meanwhile no other one lays its own.

        Who writes weights of the others where they lie here would write into memory of a shard.
        """
        with self._lock:
            yield frozenset(self._laid)

    def lay(self, shard: int, descriptors: Sequence[int]) -> None:
        """A shard has sent the descriptors of its two halves; they stay the caller's.

        Raises:
            FrameRefused: it is no memory of the size that the shard's weights have.
            OSError: the system refuses.
        """
        layout = SliceLayout(self._plan, shard, self._held)
        for descriptor in descriptors:
            shared_memory.check(descriptor, layout.nbytes)
        inode = os.fstat(descriptors[0]).st_ino
        with self._lock:
            if self._laid.get(shard) == inode or not self._halves:
                return  # a new connection to the same memory; or nothing is shared any more
            for half, descriptor in zip(self._halves, descriptors, strict=True):
                for at, start, count in layout.spans:
                    half.lay(descriptor, at=at, start=start, nbytes=count)
            if self._stays:
                kept = tuple(map(os.dup, descriptors))
                _close({shard: self._sources.pop(shard, ())})
                self._sources[shard] = kept
            self._laid[shard] = inode
            self._windows = list(self._parts())

    def front(self) -> FlatBuckets | None:
        """The weights of the version shown last, in one place for all versions; None: parameters are to move.

        They are the pages of that version's half, as far as the system knows. Whoever reads them sees the
        version before until this is called, and this one then.

        Raises:
            OSError: the system has no memory or mapping left.
        """
        with self._lock:
            self._shows_front = bool(self._halves) and self._stays and self._laid.keys() == self._shards
            if not self._shows_front:
                return None
            if self._front is None:
                memory = OverlaidMemory(Layout(self._plan).nbytes)
                self._front = memory, FlatBuckets(self._plan, memory=memory)
            memory, flat = self._front
            half = self._flats.index(self.weights)
            for shard, descriptors in self._sources.items():
                for at, start, count in SliceLayout(self._plan, shard, self._held).spans:
                    memory.lay(descriptors[half], at=at, start=start, nbytes=count)
            return flat

    def own(self, shard: int) -> None:
        """A shard's weights come another way from now on; those that are here stay as they are.

        Raises:
            OSError: the system has no memory or mapping left; they may change, and there is no way on.
        """
        with self._lock:
            if self._laid.pop(shard, None) is None:
                return  # nothing is shared any more
            self._windows = list(
                self._parts()
            )  # what has become private looks as if the script had written it
            for half in self._halves:
                for at, count in self._spans(shard):
                    half.own(at=at, nbytes=count)
            _close({shard: self._sources.pop(shard, ())})

    def own_all(self, *, ended: bool = False) -> None:
        """The weights shown last stay here, whatever shards do; nothing is shared any more.

        Args:
            ended: shards write these weights no more, so they stay where they are, and are not copied.

        Raises:
            OSError: the system has no memory or mapping left; it may be called again.
        """
        with self._lock:
            kept = (self.front() if self._shows_front else None) or self.weights
            places = list(zip(self._halves, self._flats, strict=False))
            places += [] if self._front is None else [self._front]
            for memory, flat in places:
                for at, count in self._laid_spans() if flat is kept and not ended else ():
                    memory.own(at=at, nbytes=count)
            for memory, flat in places:
                if flat is not kept:
                    memory.drop()
            self._halves, self._flats, self._laid, self.descriptors = [], [kept], {}, ()
            self.weights, self._front, self._shows_front = kept, None, False
            self._windows = []
            _close(self._sources)

    def written(self, turn: int | None = None) -> bool:
        """Whether the script has written to memory of shards that shows the weights.

        Args:
            turn: looks at a part, the next one with each version; None: at all, and at what showed those of
                before, some 20 ms per GB.
        """
        windows, front = self._windows, self._front
        if front is not None and self._shows_front and turn is not None:  # with the next version it is gone
            return any(front[0].written(at=at, nbytes=count) for at, count in windows)
        if turn is not None and windows:
            looks = -(-2 * len(windows) // FOUND_WITHIN)
            first = turn // 2 * looks  # halves take turns, too
            windows = [windows[(first + index) % len(windows)] for index in range(looks)]
        halves = zip(self._halves, self._flats, strict=False)
        shown = [half for half, flat in halves if flat is self.weights]
        if turn is None:
            shown = self._all_mapped()
        return any(memory.written(at=at, nbytes=count) for memory in shown for at, count in windows)

    def restore(self) -> None:
        """Undoes what the script has written to memory of shards."""
        with self._lock:
            for memory in self._all_mapped():
                for at, count in self._laid_spans():
                    memory.restore(at=at, nbytes=count)

    def _all_mapped(self) -> list[OverlaidMemory]:
        return [*self._halves, *(() if self._front is None else self._front[:1])]

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Cuts what is laid into parts that are looked at in a step."""
        whole: list[list[int]] = []  # first byte, and the one behind the last, of what lies together
        for at, count in sorted(self._laid_spans()):
            if whole and whole[-1][1] == at:
                whole[-1][1] = at + count
            else:
                whole.append([at, at + count])
        pages = sum(end - start for start, end in whole) // PAGE_BYTES
        nbytes = max(WINDOW_BYTES, -(-2 * pages // FOUND_WITHIN) * PAGE_BYTES)
        for start, end in whole:
            for at in range(start, end, nbytes):
                yield at, min(nbytes, end - at)

    def _laid_spans(self) -> Iterator[tuple[int, int]]:
        for shard in sorted(self._laid):
            yield from self._spans(shard)

    def _spans(self, shard: int) -> list[tuple[int, int]]:
        return [(at, count) for at, _, count in SliceLayout(self._plan, shard, self._held).spans]


def stays(plan: Plan) -> bool:
    """Whether parameters that show mapped weights of such a table stay in one place."""
    shards = {plan.partition(index).shard for index in range(plan.num_partitions)}
    slices = len(plan.buckets) * len(shards)
    return SLICE_BYTES * slices <= Layout(plan).nbytes < SMALL_BYTES * len(plan.parameters)


def _close(sources: dict[int, tuple[int, ...]]) -> None:
    while sources:
        for descriptor in sources.popitem()[1]:
            os.close(descriptor)


def weights_changed(what: str) -> WeightsChanged:
    """The error where the script has written into `what`."""
    return WeightsChanged(
        f"{what} was written by the script after wrap. The servers hold the weights, and what is written "
        "here would be lost: load weights before wrap; to evaluate others, use a copy of the model"
    )
