"""States of tables as named tensors and facts in JSON, and back, also into another number of shards.

A tensor is named `table/kind/offset/parameter`: kind is `weight` or what torch's optimizer calls it
(`exp_avg`, `step`), offset the piece's first element in the parameter. Padding is not kept. Facts say what a
partition's state machine has, and which pieces it holds.

A partition of another plan is put together of pieces. Its clocks, version and counters are those of the
partition that its first piece came from: at the moment of a cut they agree, but for what was dropped, skipped
or mixed in some partitions only. Where the parts of a piece have counted different steps they stay apart, and
each has its own state. What goes on in the same moment (staged contributions) fits its own plan.

Whoever may bring a snapshot may write what it likes into it: facts are read field by field, and
`TableReader.check` finds whether all elements of a part are there, before any memory is taken for them.

It must not know files: tensors come from any mapping, which may read them when asked.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import torch

from ps_server.shard.optimizer.partition_tensors import TensorsState
from ps_server.shard.optimizer.piece_optimizer import State, known
from ps_server.shard.partition.cell_state import CellState
from ps_server.shard.partition.gradient import Gradient, gradient_of
from ps_server.shard.partition.machine import MAX_TAU, Contribution, Ledger
from ps_server.shard.partition.machine_state import MachineMember, MachineState
from ps_server.shard.table.table_state import TableState
from ps_wire.errors import SnapshotMismatch, from_wire
from ps_wire.frames.frame import FIRST_READER
from ps_wire.frames.messages import hyperparameters_from_proto, hyperparameters_to_proto, refused_to_proto
from ps_wire.snapshot.json_fields import MAX_COUNT, Field, FieldInvalid
from ps_wire.spec.plan import CUT_ELEMENTS, Partition, Piece, Plan
from ps_wire.spec.table import Hyperparameters, TableSpec
from ps_wire.v1 import spec_pb2

WEIGHT = "weight"
STAGED = "staged"

Tensors = Mapping[str, torch.Tensor]
Facts = Mapping[str, Any]  # JSON


# -- to tensors and facts ------------------------------------------------------------------------------


def encode_cell(
    plan: Plan, table: int, index: int, state: CellState
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """One partition: its tensors, which are views of the state's, and its facts."""
    tensors: dict[str, torch.Tensor] = {}
    held, machine = state.tensors, state.machine
    for piece, own in zip(held.parts, held.optimizer, strict=True):
        whose = f"{piece.parameter_offset}/{plan.parameters[piece.parameter].name}"
        tensors[f"{table}/{WEIGHT}/{whose}"] = held.weights[piece.offset : piece.offset + piece.numel]
        for kind, value in own.items():
            tensors[f"{table}/{kind}/{whose}"] = value
    for item in machine.staged:
        if not item.abstains:
            tensors[f"{table}/{STAGED}/{index}/{item.worker}"] = gradient_of(item).values.contiguous()
    facts: dict[str, Any] = {
        "index": index,
        "pieces": [
            [plan.parameters[piece.parameter].name, piece.parameter_offset, piece.numel, sorted(own)]
            for piece, own in zip(held.parts, held.optimizer, strict=True)
        ],
        "version": machine.version,
        "newest_clock": machine.newest_clock,
        "mixed_steps": machine.mixed_steps,
        "hyper_mismatches": state.hyper_mismatches,
        "tau": sorted(machine.tau.items()),
        "ledgers": {str(worker): asdict(ledger) for worker, ledger in machine.ledgers.items()},
        "members": [[worker, it.incarnation, it.clock] for worker, it in sorted(machine.members.items())],
        "staged": [_staged_facts(item) for item in machine.staged],
        "owed": [
            [worker, incarnation, type(error).__name__, error.message, refused_to_proto(error).facts]
            for worker, (incarnation, error) in sorted(state.owed.items())
        ],
    }
    return tensors, facts


def encode_hyper(state: TableState) -> list[Any]:
    """Facts about hyper-parameters that pushes may still refer to: the rank stands last, unless it is 0."""
    return [
        [worker, number, _hyper_text(hyper), *([rank] if rank else [])]
        for (worker, rank), kept in sorted(state.hyper.items())
        for number, hyper in kept.items()
    ]


def encode(plan: Plan, table: int, state: TableState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A table's part on one shard."""
    tensors: dict[str, torch.Tensor] = {}
    partitions = []
    for index, cell in state.cells.items():
        own, facts = encode_cell(plan, table, index, cell)
        tensors |= own
        partitions.append(facts)
    return tensors, {"table": table, "partitions": partitions, "hyper": encode_hyper(state)}


def _hyper_text(hyper: Hyperparameters) -> str:
    return hyperparameters_to_proto(hyper).SerializeToString().hex()


def _staged_facts(item: Contribution) -> dict[str, Any]:
    facts: dict[str, Any] = {"worker": item.worker, "incarnation": item.incarnation, "step": item.step}
    facts |= {"version": item.version, "weight": item.weight}
    if item.abstains:
        return facts
    gradient = gradient_of(item)
    return facts | {
        "present": [int(flag) for flag in gradient.present],
        "hyper": _hyper_text(gradient.hyper),
        "strict": gradient.strict,
        "pulls": gradient.pulls,
    }


# -- and back ------------------------------------------------------------------------------------------


class _Books(NamedTuple):
    """The facts of a saved partition beside its tensors."""

    machine: MachineState
    hyper_mismatches: int


@dataclass(frozen=True, slots=True)
class _Saved:
    """A piece that was saved: where, and which state it has."""

    numel: int
    kinds: tuple[str, ...]
    books: _Books
    tensors: Tensors


class _Part(NamedTuple):
    """Elements of a saved piece: `start` to `end`, counted from its `offset` in the parameter."""

    name: str
    saved: _Saved
    offset: int
    start: int
    end: int


class TableReader:
    """A saved table, to be read for any plan.

    Attributes:
        spec: of the table that it is read for.
    """

    def __init__(
        self,
        spec: TableSpec,
        sources: Iterable[tuple[Tensors, Facts]] = (),
        *,
        num_workers: int = FIRST_READER,
    ) -> None:
        """Takes what each shard has saved of the table, as `take` does; the job has so many workers."""
        self.spec = spec
        self._num_workers = num_workers
        self._shapes = {parameter.name: parameter.numel for parameter in spec.parameters}
        self._sources: list[tuple[Tensors, Facts]] = []
        self._offsets: dict[str, list[int]] = {}
        self._pieces: dict[tuple[str, int], _Saved] = {}
        self._first: _Books | None = None
        for tensors, facts in sources:
            self.adopt(tensors, Field(facts))

    def adopt(self, tensors: Tensors, facts: Field) -> None:
        """Adds what one shard has saved of the table; together that is all of it, or the shard's own.

        Raises:
            FieldInvalid: a fact is none.
        """
        self._sources.append((tensors, facts.mapping()))
        for partition in facts.form(("table", "partitions", "hyper"))["partitions"].entries(MAX_COUNT):
            parts = partition.form(_PARTITION)
            parts["index"].whole()
            books = _Books(_machine(parts, self._num_workers), parts["hyper_mismatches"].whole())
            self._first = self._first or books
            for piece in parts["pieces"].entries(MAX_COUNT):
                self._take_piece(piece, books, tensors)
        for offsets in self._offsets.values():
            offsets.sort()

    def _take_piece(self, given: Field, books: _Books, tensors: Tensors) -> None:
        parts = given.tuple(4)
        name = parts[0].value
        whole = self._shapes.get(name) if isinstance(name, str) else None
        if whole is None:
            raise parts[0].refuse(f"a parameter of table {self.spec.number}")
        offset = parts[1].whole(whole)
        numel = parts[2].whole(whole - offset, least=1)
        if offset % CUT_ELEMENTS:
            raise parts[1].refuse(f"a multiple of {CUT_ELEMENTS}")
        if (name, offset) in self._pieces:
            raise given.refuse("a piece that comes once")
        kinds = tuple(kind.text(MAX_KIND) for kind in parts[3].entries(MAX_KINDS))
        self._offsets.setdefault(name, []).append(offset)
        self._pieces[name, offset] = _Saved(numel, kinds, books, tensors)

    def check(self, plan: Plan, shard: int) -> None:
        """Looks whether `shard` will find all that it reads; nothing is copied.

        Raises:
            SnapshotMismatch: as `shard`.
        """
        scalars = known(self.spec.optimizer.name).scalars
        for partition in plan.partitions_of_shard(shard):
            for piece in plan.pieces(partition):
                for part in self._parts(plan, piece):
                    self._slice(plan, piece, part, WEIGHT)
                    for kind in part.saved.kinds:
                        if kind in scalars:
                            self._scalar(part, kind)
                        else:
                            self._slice(plan, piece, part, kind)

    def shard(self, plan: Plan, shard: int) -> Iterator[tuple[int, CellState]]:
        """Gives what a shard of this plan is to hold, partition after partition.

        Raises:
            SnapshotMismatch: a parameter, or a part of one, is missing, or of another kind.
        """
        for partition in plan.partitions_of_shard(shard):
            yield partition.index, self._cell(plan, partition)

    def going_on(self, plan: Plan, shard: int) -> TableState:
        """A hand-off, for the same shard and plan: with members, and what is staged, said and owed."""
        saved = {
            item["index"]: (item, tensors) for tensors, table in self._sources for item in table["partitions"]
        }
        cells = {
            index: self._with_staged(index, state, *saved[index]) for index, state in self.shard(plan, shard)
        }
        hyper: dict[tuple[int, int], dict[int, Hyperparameters]] = {}
        for _, table in self._sources:
            for worker, number, text, *rank in table["hyper"]:
                hyper.setdefault((worker, rank[0] if rank else 0), {})[number] = _hyper(text)
        return TableState(cells=cells, hyper=hyper)

    def parameter(self, name: str, kind: str = WEIGHT) -> torch.Tensor:
        """A whole parameter's weights or state, 1-D; see `kinds`."""
        offsets = self._offsets.get(name, [])
        return torch.cat([self._tensor(name, offset, kind).reshape(-1) for offset in offsets])

    # -- inside ----------------------------------------------------------------------------------------

    def _cell(self, plan: Plan, partition: Partition) -> CellState:
        dtype = getattr(torch, plan.buckets[partition.bucket].dtype)
        weights = torch.zeros(partition.numel, dtype=dtype)
        pieces: list[Piece] = []
        states: list[State] = []
        first: _Books | None = None
        for piece in plan.pieces(partition):
            parts = self._parts(plan, piece)
            first = first or parts[0].saved.books
            kept = weights[piece.offset : piece.offset + piece.numel]
            torch.cat([self._slice(plan, piece, part, WEIGHT) for part in parts], out=kept)
            for cut, own in self._cuts(piece, parts):
                pieces.append(cut)
                states.append(self._state(plan, cut, own))
        first = first or self._first  # padding only
        if first is None:
            raise SnapshotMismatch(f"nothing was saved of table {self.spec.number}")
        return CellState(
            machine=first.machine,
            hyper_mismatches=first.hyper_mismatches,
            tensors=TensorsState(weights=weights, parts=pieces, optimizer=states),
        )

    def _parts(self, plan: Plan, piece: Piece) -> list[_Part]:
        """Saved pieces that a piece is made of."""
        name = plan.parameters[piece.parameter].name
        offsets = self._offsets.get(name, [])
        at, end = piece.parameter_offset, piece.parameter_offset + piece.numel
        parts = []
        index = max(bisect_right(offsets, at) - 1, 0)
        while at < end:
            saved = self._pieces.get((name, offsets[index])) if index < len(offsets) else None
            if saved is None or not offsets[index] <= at < offsets[index] + saved.numel:
                raise SnapshotMismatch(f"elements {at} to {end} of parameter {name!r} were not saved")
            until = min(offsets[index] + saved.numel, end)
            parts.append(_Part(name, saved, offsets[index], at - offsets[index], until - offsets[index]))
            at = until
            index += 1
        return parts

    def _cuts(self, piece: Piece, parts: Sequence[_Part]) -> Iterator[tuple[Piece, list[_Part]]]:
        """A piece, whole or cut where what is saved has counted different steps."""
        done = 0
        for _, alike in itertools.groupby(parts, self._counted):
            own = list(alike)
            numel = sum(part.end - part.start for part in own)
            at = piece.offset + done, piece.parameter_offset + done
            yield Piece(parameter=piece.parameter, offset=at[0], parameter_offset=at[1], numel=numel), own
            done += numel

    def _counted(self, part: _Part) -> list[tuple[str, float | None]]:
        """Gives what has to be the same of parts that share a state."""
        scalars = known(self.spec.optimizer.name).scalars
        return [
            (kind, self._scalar(part, kind).item() if kind in scalars else None) for kind in part.saved.kinds
        ]

    def _slice(self, plan: Plan, piece: Piece, part: _Part, kind: str) -> torch.Tensor:
        saved, offset, start, end = part.saved, part.offset, part.start, part.end
        parameter = plan.parameters[piece.parameter]
        found = self._tensor(parameter.name, offset, kind)
        expected = (saved.numel,), getattr(torch, parameter.dtype)
        if (tuple(found.shape), found.dtype) != expected:
            raise SnapshotMismatch(
                f"{kind} of parameter {parameter.name!r} was saved as {found.dtype} of shape "
                f"{tuple(found.shape)}; expected {expected[1]} of shape {expected[0]}"
            )
        return found[start:end]

    def _scalar(self, part: _Part, kind: str) -> torch.Tensor:
        """One number, for the whole piece."""
        found = self._tensor(part.name, part.offset, kind)
        if found.dim() or found.dtype not in (torch.float32, torch.float64):
            raise SnapshotMismatch(
                f"{kind} of parameter {part.name!r} was saved as {found.dtype} of shape "
                f"{tuple(found.shape)}; expected a number"
            )
        return found

    def _tensor(self, name: str, offset: int, kind: str) -> torch.Tensor:
        key = f"{self.spec.number}/{kind}/{offset}/{name}"
        try:
            return self._pieces[name, offset].tensors[key]
        except KeyError:
            raise SnapshotMismatch(
                f"{kind} of parameter {name!r} from element {offset} was not saved"
            ) from None

    def _state(self, plan: Plan, piece: Piece, parts: Sequence[_Part]) -> State:
        scalars = known(self.spec.optimizer.name).scalars
        first = parts[0]
        return {
            kind: self._scalar(first, kind)
            if kind in scalars
            else torch.cat([self._slice(plan, piece, part, kind) for part in parts])
            for kind in first.saved.kinds
        }

    def _with_staged(self, index: int, state: CellState, facts: Facts, tensors: Tensors) -> CellState:
        staged = tuple(
            Contribution(
                worker=item["worker"],
                incarnation=item["incarnation"],
                step=item["step"],
                version=item["version"],
                weight=item["weight"],
                payload=self._gradient(item, index, tensors),
            )
            for item in facts["staged"]
        )
        owed = {
            worker: (incarnation, from_wire(error, message, more))
            for worker, incarnation, error, message, more in facts["owed"]
        }
        return replace(state, machine=replace(state.machine, staged=staged), owed=owed)

    def _gradient(self, item: Facts, index: int, tensors: Tensors) -> Gradient | None:
        if "present" not in item:
            return None
        return Gradient(
            terms=(tensors[f"{self.spec.number}/{STAGED}/{index}/{item['worker']}"],),
            present=tuple(map(bool, item["present"])),
            hyper=_hyper(item["hyper"]),
            strict=item["strict"],
            pulls=item["pulls"],
        )


def _hyper(text: str) -> Hyperparameters:
    return hyperparameters_from_proto(spec_pb2.Hyperparameters.FromString(bytes.fromhex(text)))


_COUNTS = ("version", "newest_clock", "mixed_steps", "hyper_mismatches")
_PARTITION = ("index", "pieces", *_COUNTS, "tau", "ledgers", "members", "staged", "owed")
_LEDGER = {field.name for field in fields(Ledger)}
MAX_KIND, MAX_KINDS = 64, 16  # characters of the name of a state's tensor; tensors of a state
MAX_INCARNATION = (1 << 64) - 1
MAX_WAIT_S = 1e12  # older files may hold a little less than 0


def _machine(parts: Mapping[str, Field], num_workers: int) -> MachineState:
    tau, members = {}, {}
    for pair in parts["tau"].entries(MAX_TAU + 1):
        staleness, count = pair.tuple(2)
        tau[staleness.whole(MAX_TAU)] = count.whole()
    for member in parts["members"].entries(num_workers):
        worker, incarnation, clock = member.tuple(3)
        members[worker.whole(num_workers - 1)] = MachineMember(
            incarnation=incarnation.whole(MAX_INCARNATION), clock=clock.whole()
        )
    ledgers = parts["ledgers"].numbered(num_workers - 1, num_workers)
    return MachineState(
        version=parts["version"].whole(),
        newest_clock=parts["newest_clock"].whole(),
        mixed_steps=parts["mixed_steps"].whole(),
        tau=tau,
        ledgers={worker: _ledger(ledger) for worker, ledger in ledgers.items()},
        members=members,
    )


def _ledger(given: Field) -> Ledger:
    ledger = given.mapping()
    if not ledger.keys() <= _LEDGER:
        raise FieldInvalid(given.path, ", ".join(sorted(_LEDGER)), ledger)
    for name, value in ledger.items():  # of the many that there are, few are looked at
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            count = given.within(name, value)
            count.real(MAX_WAIT_S, -MAX_WAIT_S) if name == "gate_wait_s" else count.whole()
    return Ledger(**ledger)


def facts_text(facts: Facts) -> str:
    """Facts as they are kept in a file."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
