"""States of tables as named tensors and facts in JSON, and back, also into another number of shards.

A tensor is named `table/kind/offset/parameter`: kind is `weight` or what torch's optimizer calls it
(`exp_avg`, `step`), offset the piece's first element in the parameter. Padding is not kept. Facts say what a
partition's state machine has, and which pieces it holds.

A partition of another plan is put together of pieces. Its clocks, version and counters are those of the
partition that its first piece came from: at the moment of a cut they agree, but for what was dropped, skipped
or mixed in some partitions only. Where pieces that become one have counted different steps, the largest
counts, which is said. What goes on in the same moment (staged contributions) fits its own plan.

It must not know files: tensors come from any mapping, which may read them when asked.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ps_server.gradient import Gradient
from ps_server.log import logger
from ps_server.optimizers import State, known
from ps_server.partition import Contribution, Ledger
from ps_server.table_state import CellState, MachineState, TableState
from ps_wire.errors import SnapshotMismatch, from_wire
from ps_wire.messages import hyperparameters_from_proto, hyperparameters_to_proto, refused_to_proto
from ps_wire.plan import Partition, Piece, Plan
from ps_wire.table import Hyperparameters, TableSpec
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
    pieces = plan.pieces(plan.partition(index))
    tensors: dict[str, torch.Tensor] = {}
    for piece, own in zip(pieces, state.optimizer or [{}] * len(pieces), strict=True):
        whose = f"{piece.parameter_offset}/{plan.parameters[piece.parameter].name}"
        tensors[f"{table}/{WEIGHT}/{whose}"] = state.weights[piece.offset : piece.offset + piece.numel]
        for kind, value in own.items():
            tensors[f"{table}/{kind}/{whose}"] = value
    for item in state.staged:
        if item.payload is not None:
            tensors[f"{table}/{STAGED}/{index}/{item.worker}"] = item.payload.values
    machine = state.machine
    facts: dict[str, Any] = {
        "index": index,
        "pieces": [
            [plan.parameters[piece.parameter].name, piece.parameter_offset, piece.numel, sorted(own)]
            for piece, own in zip(pieces, state.optimizer or [{}] * len(pieces), strict=True)
        ],
        "version": machine.version,
        "newest_clock": machine.newest_clock,
        "mixed_steps": machine.mixed_steps,
        "hyper_mismatches": machine.hyper_mismatches,
        "tau": sorted(machine.tau.items()),
        "ledgers": {str(worker): asdict(ledger) for worker, ledger in machine.ledgers.items()},
        "members": [[worker, *standing] for worker, standing in sorted(machine.members.items())],
        "staged": [_staged_facts(item) for item in state.staged],
        "owed": [
            [worker, incarnation, type(error).__name__, error.message, refused_to_proto(error).facts]
            for worker, (incarnation, error) in sorted(state.owed.items())
        ],
    }
    return tensors, facts


def encode_hyper(state: TableState) -> list[Any]:
    """Facts about hyper-parameters that pushes may still refer to."""
    return [
        [worker, number, _hyper_text(hyper)]
        for worker, kept in sorted(state.hyper.items())
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
    gradient: Gradient | None = item.payload
    if gradient is None:
        return facts
    return facts | {
        "present": [int(flag) for flag in gradient.present],
        "hyper": _hyper_text(gradient.hyper),
        "strict": gradient.strict,
        "pulls": gradient.pulls,
    }


# -- and back ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Saved:
    """A piece that was saved: where, and which state it has."""

    numel: int
    kinds: tuple[str, ...]
    facts: Facts
    tensors: Tensors


class TableReader:
    """A saved table, to be read for any plan.

    Attributes:
        spec: of the table that it is read for.
    """

    def __init__(self, spec: TableSpec, sources: Iterable[tuple[Tensors, Facts]]) -> None:
        """Takes what each shard has saved of the table; together that is all of it, or the shard's own."""
        self.spec = spec
        self._sources = tuple(sources)
        self._offsets: dict[str, list[int]] = {}
        self._pieces: dict[tuple[str, int], _Saved] = {}
        for tensors, facts in self._sources:
            for partition in facts["partitions"]:
                for name, offset, numel, kinds in partition["pieces"]:
                    self._offsets.setdefault(name, []).append(offset)
                    self._pieces[name, offset] = _Saved(numel, tuple(kinds), partition, tensors)
        for offsets in self._offsets.values():
            offsets.sort()

    def shard(self, plan: Plan, shard: int) -> Iterator[tuple[int, CellState]]:
        """What a shard of this plan is to hold, partition after partition.

        Raises:
            SnapshotMismatch: a parameter, or a part of one, is missing, or of another kind.
        """
        for partition in plan.partitions_of_shard(shard):
            yield partition.index, self._cell(plan, partition)

    def going_on(self, plan: Plan, shard: int) -> TableState:
        """A hand-off, for the same shard and plan: with members, and what is staged, said and owed."""
        facts = {item["index"]: item for _, table in self._sources for item in table["partitions"]}
        cells = {
            index: self._with_staged(index, state, facts[index]) for index, state in self.shard(plan, shard)
        }
        hyper: dict[int, dict[int, Hyperparameters]] = {}
        for _, table in self._sources:
            for worker, number, text in table["hyper"]:
                hyper.setdefault(worker, {})[number] = _hyper(text)
        return TableState(cells=cells, hyper=hyper)

    def parameter(self, name: str, kind: str = WEIGHT) -> torch.Tensor:
        """A whole parameter's weights or state, 1-D; see `kinds`."""
        offsets = self._offsets.get(name, [])
        return torch.cat([self._tensor(name, offset, kind).reshape(-1) for offset in offsets])

    # -- inside ----------------------------------------------------------------------------------------

    def _cell(self, plan: Plan, partition: Partition) -> CellState:
        dtype = getattr(torch, plan.buckets[partition.bucket].dtype)
        weights = torch.zeros(partition.numel, dtype=dtype)
        states: list[State] = []
        first: Facts | None = None
        for piece in plan.pieces(partition):
            parts = self._parts(plan, piece)
            first = first or parts[0][0].facts
            kept = weights[piece.offset : piece.offset + piece.numel]
            torch.cat([self._slice(plan, piece, part, WEIGHT) for part in parts], out=kept)
            states.append(self._state(plan, piece, parts))
        if first is None:  # padding only
            first = self._sources[0][1]["partitions"][0]
        return CellState(machine=_machine(first), weights=weights, optimizer=states)

    def _parts(self, plan: Plan, piece: Piece) -> list[tuple[_Saved, int, int, int]]:
        """Saved pieces that a piece is made of: (saved, its offset, first element, end)."""
        name = plan.parameters[piece.parameter].name
        offsets = self._offsets.get(name, [])
        at, end = piece.parameter_offset, piece.parameter_offset + piece.numel
        parts = []
        place = max(bisect_right(offsets, at) - 1, 0)
        while at < end:
            saved = self._pieces.get((name, offsets[place])) if place < len(offsets) else None
            if saved is None or not offsets[place] <= at < offsets[place] + saved.numel:
                raise SnapshotMismatch(f"elements {at} to {end} of parameter {name!r} were not saved")
            until = min(offsets[place] + saved.numel, end)
            parts.append((saved, offsets[place], at - offsets[place], until - offsets[place]))
            at = until
            place += 1
        return parts

    def _slice(self, plan: Plan, piece: Piece, part: tuple[_Saved, int, int, int], kind: str) -> torch.Tensor:
        saved, offset, start, end = part
        parameter = plan.parameters[piece.parameter]
        found = self._tensor(parameter.name, offset, kind)
        expected = (saved.numel,), getattr(torch, parameter.dtype)
        if (tuple(found.shape), found.dtype) != expected:
            raise SnapshotMismatch(
                f"{kind} of parameter {parameter.name!r} was saved as {found.dtype} of shape "
                f"{tuple(found.shape)}; expected {expected[1]} of shape {expected[0]}"
            )
        return found[start:end]

    def _tensor(self, name: str, offset: int, kind: str) -> torch.Tensor:
        key = f"{self.spec.number}/{kind}/{offset}/{name}"
        try:
            return self._pieces[name, offset].tensors[key]
        except KeyError:
            raise SnapshotMismatch(
                f"{kind} of parameter {name!r} from element {offset} was not saved"
            ) from None

    def _state(self, plan: Plan, piece: Piece, parts: Sequence[tuple[_Saved, int, int, int]]) -> State:
        scalars = known(self.spec.optimizer.name).scalars
        kinds = {kind: None for saved, *_ in parts for kind in saved.kinds}
        name = plan.parameters[piece.parameter].name
        counted = [part for part in parts if "step" in part[0].kinds]
        steps = [self._tensor(name, offset, "step").item() for _, offset, *_ in counted]
        if len(set(steps)) > 1 or any(set(saved.kinds) != kinds.keys() for saved, *_ in parts):
            logger.warning(
                "parts of parameter %s have taken different numbers of steps, and are one piece over so many "
                "shards: the largest counts",
                name,
            )
        newest = counted[steps.index(max(steps))] if counted else parts[0]
        state: dict[str, torch.Tensor] = {}
        for kind in kinds:
            if kind in scalars:
                state[kind] = self._tensor(name, newest[1], kind)
            else:
                state[kind] = torch.cat([self._slice_or_zeros(plan, piece, part, kind) for part in parts])
        return state

    def _slice_or_zeros(
        self, plan: Plan, piece: Piece, part: tuple[_Saved, int, int, int], kind: str
    ) -> torch.Tensor:
        saved, _, start, end = part
        if kind not in saved.kinds:
            return torch.zeros(end - start, dtype=getattr(torch, plan.parameters[piece.parameter].dtype))
        return self._slice(plan, piece, part, kind)

    def _with_staged(self, index: int, state: CellState, facts: Facts) -> CellState:
        tensors = self._source_of(index)
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
        return CellState(
            machine=state.machine, weights=state.weights, optimizer=state.optimizer, staged=staged, owed=owed
        )

    def _source_of(self, index: int) -> Tensors:
        for tensors, table in self._sources:
            if any(item["index"] == index for item in table["partitions"]):
                return tensors
        raise SnapshotMismatch(f"partition {index} of table {self.spec.number} was not saved")

    def _gradient(self, item: Facts, index: int, tensors: Tensors) -> Gradient | None:
        if "present" not in item:
            return None
        return Gradient(
            values=tensors[f"{self.spec.number}/{STAGED}/{index}/{item['worker']}"],
            present=tuple(map(bool, item["present"])),
            hyper=_hyper(item["hyper"]),
            strict=item["strict"],
            pulls=item["pulls"],
        )


def _hyper(text: str) -> Hyperparameters:
    return hyperparameters_from_proto(spec_pb2.Hyperparameters.FromString(bytes.fromhex(text)))


def _machine(facts: Facts) -> MachineState:
    return MachineState(
        version=facts["version"],
        newest_clock=facts["newest_clock"],
        mixed_steps=facts["mixed_steps"],
        hyper_mismatches=facts["hyper_mismatches"],
        tau=dict(facts["tau"]),
        ledgers={int(worker): Ledger(**ledger) for worker, ledger in facts["ledgers"].items()},
        members={worker: (incarnation, clock) for worker, incarnation, clock in facts["members"]},
    )


def facts_text(facts: Facts) -> str:
    """Facts as they are kept in a file."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
