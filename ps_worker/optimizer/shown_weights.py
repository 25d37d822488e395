"""A model's parameters as views of the weights that arrive, and the proof that nobody else writes them.

On a CPU a parameter of the table's dtype *is* the flat weights (`param.data` lies in them, with a storage of
its own: what moves it, such as `share_memory()`, must not move them); one on another device or of a smaller
dtype, and one that has moved, is copied to, and rounded, when new weights are there. What a script writes
into a parameter would be lost with the next pull, or be trained on by one worker alone; so each step looks:
version counters of all parameters, where their memory lies and how large it is, and the bytes of a window of
the flat weights that goes round (`param.data.clamp_()` bumps no counter), or, where weights are copied, of
parameters (`written_copies.py`).

Where weights lie in memory of shards, each version is in the other half than the one before, and parameters
go along: `param.data` is set anew with each version; or, where they are small, they stay, and other memory is
mapped there (`TableMemory.front`). What a script writes there would hide what a shard writes later on that
page, so instead of bytes each step asks the system whether a part of the pages has been written to by this
process.

Weights may be shown all together (`refresh`), or, from `expect` on, as they are here and their module is
about to run (`arrive`). Older graphs are told at both ends: by `expect`, for memory may be written from then
on, and when a parameter shows its new values, so that what read it meanwhile is found out by its backward.

Who may write when is `wrapped`'s affair; see docs/architecture.md, region ownership.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from ps_wire.errors import ParameterUnsupported, WeightsChanged
from ps_wire.process import trace
from ps_wire.spec.plan import Partition
from ps_worker.memory.flat import FlatBuckets, twin
from ps_worker.memory.table_memory import TableMemory, weights_changed
from ps_worker.memory.tensor_list import Look, Numbers, TensorList
from ps_worker.optimizer.written_copies import WrittenCopies

WINDOW_ELEMENTS = 1 << 16  # compared in a step: 2 x 20 us


class ShownWeights:
    """The weights that a table's parameters show. Used by the thread that trains, but to copy a window."""

    def __init__(
        self,
        memory: TableMemory,
        parameters: Mapping[str, torch.nn.Parameter],
        partitions: Sequence[Partition],
    ) -> None:
        """Makes the parameters show the flat weights of the version that came last.

        Args:
            memory: of the table.
            parameters: of the table, by name; those of other stages of a pipeline, which have no values here,
                show none.
            partitions: in which the others lie.
        """
        self._memory = memory
        self._partitions = partitions
        self._numbers = [index for index, it in enumerate(parameters.values()) if not it.is_meta]
        self._place_of = {number: index for index, number in enumerate(self._numbers)}
        self._flat = flat = memory.shown()
        self._twins: dict[int, TensorList] = {}  # by flat weights: what parameters show of them
        self._addresses: list[Numbers] = []  # of all twins
        names, every = list(parameters), list(parameters.values())
        self._names = [names[number] for number in self._numbers]
        self._parameters = [every[number] for number in self._numbers]
        self._all = TensorList(self._parameters)
        self._copied: set[int] = set()
        self._copies = WrittenCopies(self._parameters, memory.stagings)
        self._dtypes = [parameter.dtype for parameter in self._parameters]
        self._numels = TensorList(self._views_of(flat)).look().numels
        self._note_pointers()
        self._versions = self._all.look().versions
        self._turn = 0
        self._looked = False  # `check` has, since the last `refresh`
        self._pending: set[int] = set()  # that do not show the weights that were asked for
        self._expecting = False
        self._others = False  # than were expected have arrived
        self._trusted = True  # version counters are as they were noted: no Ctrl-C came between
        self._touched: str | None = None  # what the script wrote while weights arrived
        self._window = torch.empty(0, device="cpu")
        self._window_of = -1  # its partition
        self._kept = torch.empty(0, device="cpu")
        for index, (parameter, view) in enumerate(zip(self._parameters, self._views_of(flat), strict=True)):
            if memory.on_device is not None or not (parameter.is_cpu and parameter.dtype is view.dtype):
                self._copied.add(index)
        self._memory.watch(self._keep_window)
        self._show(flat)
        self.refresh()

    def _views_of(self, flat: FlatBuckets) -> list[torch.Tensor]:
        """The views of flat weights that these parameters show."""
        return [flat.views[number] for number in self._numbers]

    def _show(self, flat: FlatBuckets, indices: Iterable[int] | None = None) -> None:
        """Parameters (default: all) that lie in flat weights lie in these from now on."""
        twins = self._twins_of(flat)
        if indices is None and not self._copied:
            self._all.show(twins)
        else:
            for index in range(len(twins.tensors)) if indices is None else indices:
                if index not in self._copied:
                    self._parameters[index].data = twins.tensors[index]
        self._note_pointers()
        self._flat = flat  # at last: where Ctrl-C came between, it is done again

    def _twins_of(self, flat: FlatBuckets) -> TensorList:
        twins = self._twins.get(id(flat))
        if twins is None:
            twins = self._twins[id(flat)] = TensorList(list(map(twin, self._views_of(flat))))
            self._addresses.append(twins.look().addresses)  # now: `share_memory()` moves a twin along
        return twins

    @torch.inference_mode(False)
    @torch.no_grad()
    @trace.traced("refresh weights")
    def refresh(self) -> None:
        """New weights have arrived: makes autograd, other devices and smaller dtypes see them.

        Raises:
            ParameterUnsupported: a parameter has another shape or dtype than when it was wrapped.
        """
        if not self._looked and self._moved(self._all.look()):
            self._follow(arrived=True)
        self._looked = False
        pending: Sequence[int] | None = None  # all
        if self._expecting:
            pending = sorted(self._pending)
            self._note_touched(pending)
        else:
            self._memory.stagings.reads_end()
        self._trusted = False
        flat = self._memory.shown()
        if pending is None and len(self._copied) < len(self._parameters):
            flat = self._memory.front() or flat
        if self._others or flat is not self._flat:
            self._show(flat, pending)
        self._others = False
        self._fill([index for index in self._copied if not self._expecting or index in self._pending])
        if pending is None:
            self._versions = self._all.increment_versions()
        else:
            torch.autograd.graph.increment_version([self._parameters[index] for index in pending])
            self._versions = self._all.look().versions
        self._trusted = True
        self._pending.clear()
        if not self._expecting or self._memory.apart:
            self._next_window()
        self._expecting = False

    def expect(self) -> None:
        """New weights are about to be asked for: no graph that is there may go through backward any more."""
        self._trusted = False
        self._versions = self._all.increment_versions()
        self._trusted = True
        self._memory.stagings.reads_end()
        self._looked = False
        self._pending.update(range(len(self._parameters)))
        if not self._memory.apart:
            self._next_window()
        self._expecting = True

    def replace(self) -> None:
        """Other weights have come than were expected: `refresh` shows all, past what `arrive` has shown."""
        if self._expecting:
            self._pending.update(range(len(self._parameters)))
            self._others = True

    @torch.inference_mode(False)
    @torch.no_grad()
    @trace.traced("show weights")
    def arrive(self, indices: Iterable[int], version: int) -> None:
        """The weights of some parameters are here, and nobody reads these now: they show them.

        Args:
            indices: of the table; those that show them already are left as they are.
            version: that has arrived.

        Raises:
            ParameterUnsupported: as `refresh`.
        """
        mine = [it for it in map(self._place_of.get, indices) if it is not None and it in self._pending]
        if not mine:
            return
        self._note_touched(mine)
        parameters = [self._parameters[index] for index in mine]
        if any(map(self._has_moved, mine)):
            self._follow(arrived=True)
        self._trusted = False
        flat = self._memory.shown(version)
        if flat is not self._flat:
            twins = self._twins_of(flat)
            for index, parameter in zip(mine, parameters, strict=True):
                if index not in self._copied:
                    parameter.data = twins.tensors[index]
                    self._pointers[index] = parameter.data_ptr()
        self._fill([index for index in mine if index in self._copied], flat)
        torch.autograd.graph.increment_version(parameters)
        for index, parameter in zip(mine, parameters, strict=True):
            self._versions[index] = parameter._version
        self._trusted = True
        self._pending.difference_update(mine)

    def stay(self) -> None:
        """Shows the weights of the version before: not all that were asked for have come, and none will."""
        if self._expecting and self._memory.apart:
            self._show(self._memory.shown())
        self._expecting = False
        self._pending.clear()

    def names_of(self, indices: Iterable[int]) -> list[str]:
        """The names of parameters of the table, by index."""
        return [self._names[self._place_of[index]] for index in indices]

    @property
    def pending(self) -> frozenset[int]:
        """The indices of parameters that do not show the weights that were asked for."""
        return frozenset(self._numbers[index] for index in self._pending)

    def _fill(self, indices: list[int], flat: FlatBuckets | None = None) -> None:
        if self._copies.forget(indices):
            self._memory.stagings.reads_end()
        views = self._views_of(flat or self._flat)
        by_device: dict[torch.device, list[int]] = {}
        for index in indices:
            by_device.setdefault(self._parameters[index].device, []).append(index)
        for device, mine in by_device.items():
            targets = [self._parameters[index].data for index in mine]
            self._memory.stagings.of(device).into(targets, [views[index] for index in mine])
        self._copies.keep(self._copied, indices)

    def _note_touched(self, indices: Iterable[int]) -> None:
        for index in indices if self._trusted else ():
            if self._parameters[index]._version != self._versions[index]:
                self._touched = f"parameter {self._names[index]!r}"

    def _has_moved(self, index: int) -> bool:
        parameter = self._parameters[index]
        now = parameter.data_ptr(), parameter.numel()
        return now != (int(self._pointers[index]), int(self._numels[index]))

    @trace.traced("check weights")
    def check(self) -> None:
        """Looks whether something else than an arrival has written a parameter since `refresh`.

        A parameter that was moved (`model.to(device)`) with its values as they were is followed.

        Raises:
            WeightsChanged: naming the parameter where it is known.
            ParameterUnsupported: a parameter has another shape or dtype than when it was wrapped.
        """
        try:
            self._check()
        except WeightsChanged:
            self._memory.restore()
            raise
        self._looked = True

    def _check(self) -> None:
        touched, self._touched = self._touched, None
        if touched is not None:
            raise weights_changed(touched)
        now = self._all.look()
        written = np.flatnonzero(now.versions != self._versions)
        if written.size:
            raise weights_changed(f"parameter {self._names[written[0]]!r}")
        if self._moved(now):
            self._follow(arrived=False)
        if not torch.equal(self._window, self._kept) or self._memory.written(self._turn):
            raise weights_changed("a parameter")
        if (index := self._copies.found()) is not None:
            self._undo()
            raise weights_changed(f"parameter {self._names[index]!r}")
        self._copies.look()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _undo(self) -> None:
        """Parameters that weights are copied to have these again."""
        self._fill(sorted(self._copied))

    def _moved(self, now: Look) -> bool:
        return not (
            np.array_equal(now.addresses, self._pointers) and np.array_equal(now.numels, self._numels)
        )

    def _follow(self, *, arrived: bool) -> None:
        """Copies from now on to where parameters lie; `arrived`: they cannot have the newest values."""
        views = self._views_of(self._flat)
        for index, (name, pointer) in enumerate(zip(self._names, self._pointers, strict=True)):
            parameter, view = self._parameters[index], views[index]
            known = {pointer, *[addresses[index] for addresses in self._addresses]}
            if parameter.data_ptr() in known and parameter.shape == view.shape:
                continue
            if parameter.shape != view.shape:
                raise ParameterUnsupported(
                    f"parameter {name!r} had shape {tuple(view.shape)} when it was wrapped and has "
                    f"{tuple(parameter.shape)} now: a table keeps its shapes; wrap a new optimizer"
                )
            if parameter.dtype is not self._dtypes[index]:
                raise ParameterUnsupported(
                    f"parameter {name!r} was {self._dtypes[index]} when it was wrapped and is "
                    f"{parameter.dtype} now: convert the model before wrap"
                )
            if not arrived and not torch.equal(parameter.detach().to(view.device), view.to(parameter.dtype)):
                raise weights_changed(f"parameter {name!r}")
            self._copied.add(index)
        self._note_pointers()

    def _note_pointers(self) -> None:
        self._pointers = self._all.look().addresses

    def _next_window(self) -> None:
        """Keeps the bytes of another part of the flat weights."""
        self._turn += 1
        if self._memory.mapped or not self._partitions:
            return
        partition = self._partitions[self._turn % len(self._partitions)]
        flat = self._memory.weights.partition(partition)
        windows = -(-flat.numel() // WINDOW_ELEMENTS)
        start = self._turn // len(self._partitions) % windows * WINDOW_ELEMENTS
        integers = torch.int32 if flat.element_size() == 4 else torch.int64  # a NaN is like a NaN
        self._window = flat.view(integers)[start : start + WINDOW_ELEMENTS]
        self._kept = self._window.clone()
        self._window_of = partition.index

    def _keep_window(self, partition: Partition) -> None:
        """On a receiving thread, before anybody is told of it, and may write there."""
        if partition.index == self._window_of and not self._memory.apart:
            self._kept = self._window.clone()
