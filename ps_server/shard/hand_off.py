"""What a shard that is stopped in order hands to the process that takes its place: all it holds, in one file.

    STATE_DIR/hand-off-1.safetensors        written at the end; single use: whoever has read it renames it
    STATE_DIR/hand-off-1.safetensors.used   was used up; nobody looks at it any more

It is used up at one moment: when all that a start can fail at is done, and before the first call is taken.
Until then the process that reads it may fail, or be killed, and the next one finds it; from then on it is
void, for what the process holds changes.

It is for the same shard of the same number of shards, and counts as long as the coordinator has not gone on
without it: the successor comes with its predecessor's boot and generation (`standings`). It holds tables as
they stand, with what is staged, members and clocks; pushes that were not acknowledged are sent again.

A friend of `Shard` and what it is made of. It must not know the coordinator: what that hands off is passed
through.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ps_server.log import logger
from ps_server.shard.job import ShardJob
from ps_server.shard.partition.backup_machine import BackupStepMachine
from ps_server.shard.partition.machine import Pull, _Member
from ps_server.shard.shard import Shard
from ps_server.shard.state.codec import TableReader, encode
from ps_server.shard.state.table_state import capture, restore, resume
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import ConfigurationRefused, MemoryLimitExceeded, SnapshotCorrupt
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.snapshot import tensors as snapshot_tensors
from ps_wire.snapshot.tensors import TensorFile
from ps_wire.snapshot.writing import sync_folder, write_durably
from ps_wire.spec import consistency
from ps_wire.spec.nonfinite import parse as parse_nonfinite
from ps_wire.v1 import spec_pb2

FORMAT = 3
FACTS = "hand-off"
OTHER = "other"  # of a tensor's name: the half that holds the version before
KEPT = "kept"  # likewise: weights of an older version, which a late worker works on

FLAGS = ("prepared", "fenced", "late", "asked")  # of a member of a partition
_FRESH = _Member(0, 0)

Facts = dict[str, Any]  # JSON
_File: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a process has from the one before it.

    Attributes:
        boot: of the predecessor; stands for what it held.
        coordinator: the newest generation of a coordinator that it has followed.
        more: facts of somebody else, passed through.
        tensors: of somebody else, passed through.
    """

    boot: bytes
    coordinator: int = 0
    more: Facts = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


def file_of(folder: Path, shard: int) -> Path:
    """Where a shard's hand-off lies."""
    return folder / f"hand-off-{shard}.safetensors"


def write(folder: Path, shard: Shard, inherited: Inherited) -> None:
    """Writes all that a shard holds, durable on return. No thread works on it any more.

    Raises:
        PsError, OSError: it cannot be written: the successor begins with nothing.
    """
    tensors: dict[str, torch.Tensor] = {f"more/{name}": it for name, it in inherited.tensors.items()}
    jobs = [_job_facts(entry, tensors) for entry in shard.jobs()]
    facts = {
        "format": FORMAT,
        "shard": shard.index,
        "num_shards": shard.num_shards,
        "boot": inherited.boot.hex(),
        "generation": shard.generation,
        "coordinator": inherited.coordinator,
        "jobs": jobs,
        "more": inherited.more,
    }
    parts = snapshot_tensors.encode(tensors, {FACTS: json.dumps(facts)})
    write_durably(file_of(folder, shard.index), parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A hand-off that lies there: read, and not used up.

    Attributes:
        path: where it lies.
        written: which file it was that was read.
        inherited: what it holds; None: it cannot be used.
    """

    path: Path
    written: _File
    inherited: Inherited | None

    def _check(self) -> None:
        if _which(self.path) != self.written:
            raise FileNotFoundError(self.path)

    def use_up(self) -> None:
        """Sets the file aside, durable on return: nobody takes up again what changes from now on.

        Raises:
            ConfigurationRefused: it has gone, or cannot be set aside: this process is not to serve. Where its
                other name cannot be made durable it gets its own back, for the next start.
        """
        used = self.path.with_name(self.path.name + ".used")
        try:
            self._check()
            self.path.rename(used)
            try:
                sync_folder(self.path.parent)
            except OSError:
                used.rename(self.path)
                raise
        except FileNotFoundError:
            raise ConfigurationRefused(
                f"another process has taken the hand-off {self.path} meanwhile: it is this shard; start one "
                "process of a shard on a --state-dir"
            ) from None
        except OSError as error:
            remedy = "" if self.path.exists() else f": rename {used} to it"
            raise ConfigurationRefused(
                f"--state-dir: the hand-off {self.path} cannot be set aside: {error.strerror}; it is kept, "
                f"for the next start{remedy}"
            ) from None


def find(folder: Path, shard: Shard) -> Found | None:
    """Puts what was handed off into a shard that holds nothing yet, and leaves the file; None: there is none.

    Nothing may come to the shard before the file is used up.

    Raises:
        ConfigurationRefused: it does not fit into the shard's memory.
    """
    path = file_of(folder, shard.index)
    try:
        written = _which(path)
    except FileNotFoundError:
        return None
    inherited = None
    try:
        inherited = _take(TensorFile(path, str(path)), shard)
    except MemoryLimitExceeded as error:  # the same file fits where there is more
        raise ConfigurationRefused(
            f"the hand-off {path} is kept, and does not fit here: {error.message}; start this server with a "
            "larger --memory-limit, or with none"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever it is: it is said, and the shard counts as lost
        logger.exception("the hand-off %s cannot be used: %s", path, error)
        for entry in shard.jobs():
            shard.drop(entry.name)
    return Found(path=path, written=written, inherited=inherited)


def _which(path: Path) -> _File:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _take(file: TensorFile, shard: Shard) -> Inherited:
    facts: Facts = json.loads(file.facts[FACTS])
    if (facts["format"], facts["shard"], facts["num_shards"]) != (FORMAT, shard.index, shard.num_shards):
        raise SnapshotCorrupt(
            f"it is of shard {facts['shard']}/{facts['num_shards']} in format {facts['format']}; this is "
            f"shard {shard.index}/{shard.num_shards}, which reads format {FORMAT}"
        )
    for job in facts["jobs"]:
        _take_job(shard, job, file)
    passed_on = {name.removeprefix("more/"): file[name].clone() for name in file if name.startswith("more/")}
    inherited = Inherited(
        boot=bytes.fromhex(facts["boot"]),
        coordinator=facts["coordinator"],
        more=facts["more"],
        tensors=passed_on,
    )
    shard.generation = facts["generation"]
    return inherited


# -- jobs ----------------------------------------------------------------------------------------------


def _job_facts(job: ShardJob, tensors: dict[str, torch.Tensor]) -> Facts:
    tables = []
    for number, table in sorted(job.tables.items()):
        with table.closer.changing():  # what is decided at this moment is on all partitions, or on none
            own, facts = _table_facts(number, table)
        tensors |= {f"job/{job.name}/{name}": tensor for name, tensor in own.items()}
        tables.append(facts)
    return {
        "name": job.name,
        "consistency": str(job.consistency),
        "num_workers": job.num_workers,
        "nonfinite": str(job.nonfinite),
        "members": [
            [worker, incarnation, list(clocks.items())]
            for worker, (incarnation, clocks) in job.members.items()
        ],
        "known": list(job.known.items()),
        "fenced": list(job.fenced.items()),
        "expelled": list(job.expelled),
        "floor": job.floor,
        "floor_step": job.floor_step,
        "tables": tables,
    }


def _take_job(shard: Shard, facts: Facts, file: TensorFile) -> None:
    name = facts["name"]
    entry = ShardJob(
        name=name,
        consistency=consistency.parse(facts["consistency"]),
        num_workers=facts["num_workers"],
        nonfinite=parse_nonfinite(facts["nonfinite"]),
        known=dict(facts["known"]),
        fenced=dict(facts["fenced"]),
        expelled=dict.fromkeys(facts["expelled"]),
        floor=facts["floor"],
        floor_step=facts["floor_step"],
    )
    shard.put(entry)
    prefix = f"job/{name}/"
    own = {key.removeprefix(prefix): file[key] for key in file if key.startswith(prefix)}
    for table in facts["tables"]:
        _take_table(shard, name, table, own)
    entry.members.update(
        {worker: (incarnation, dict(clocks)) for worker, incarnation, clocks in facts["members"]}
    )
    for opened in entry.tables.values():
        if opened.started:
            resume(opened)


def _take_behind(table: ShardTable, facts: Facts, tensors: Mapping[str, torch.Tensor]) -> None:
    """With backup workers: steps that are chosen and not closed, who is late, and weights that are behind.

    Who is late has to be known before anybody pushes: it may have been told elsewhere where it goes on.
    """
    for index, workers in facts["chosen"]:
        machine = table.cell(index).machine
        assert isinstance(machine, BackupStepMachine)
        machine._chosen = frozenset(workers)
    for index, worker in facts["waiting"]:
        machine = table.cell(index).machine
        member = machine._members[worker]
        machine._waiting[worker] = Pull(
            worker=worker, incarnation=member.incarnation, clock=member.clock, asked_s=time.monotonic()
        )
    prefix = f"{table.spec.number}/{KEPT}/"
    for name in [name for name in tensors if name.startswith(prefix)]:
        index, version = map(int, name.removeprefix(prefix).split("/"))
        table.cell(index).values._kept[version] = tensors[name].clone()


def _table_facts(number: int, table: ShardTable) -> tuple[dict[str, torch.Tensor], Facts]:
    unloaded = []
    flags, chosen, waiting = [], [], []
    others: dict[str, torch.Tensor] = {}
    for index, cell in zip(table.partitions(), table.cells(), strict=True):
        if not cell.loaded:
            unloaded.append(index)
            cell.loaded = True
        for worker, member in cell.machine._members.items():
            values = [getattr(member, name) for name in FLAGS]
            if values != [getattr(_FRESH, name) for name in FLAGS]:
                flags.append([index, worker, values])
            if member.late and worker in cell.machine._waiting:
                waiting.append([index, worker])
        if isinstance(cell.machine, BackupStepMachine) and cell.machine._chosen is not None:
            chosen.append([index, sorted(cell.machine._chosen)])
        for version, kept in cell.values._kept.items():
            others[f"{number}/{KEPT}/{index}/{version}"] = kept
        if cell.values.doubled:
            assert cell.values._weights.other is not None
            others[f"{number}/{OTHER}/{index}"] = cell.values._weights.other
    tensors, facts = encode(table.plan, number, capture(table, going_on=True))
    return tensors | others, {
        "spec": table_to_proto(table.spec).SerializeToString().hex(),
        "opening": table.opening,
        "started": table.started,
        "epoch": table.closer.epoch,
        "unloaded": unloaded,
        "flags": flags,
        "chosen": chosen,
        "waiting": waiting,
        "state": facts,
    }


def _take_table(shard: Shard, job: str, facts: Facts, tensors: Mapping[str, torch.Tensor]) -> None:
    spec = table_from_proto(spec_pb2.Table.FromString(bytes.fromhex(facts["spec"])))
    shard.open_table(job, spec, facts["opening"])
    table = shard.table(job, spec.number)
    state = TableReader(spec, [(tensors, facts["state"])]).going_on(table.plan, shard.index)
    restore(table, state, going_on=True)
    for index, worker, values in facts["flags"]:
        for name, value in zip(FLAGS, values, strict=True):
            setattr(table.cell(index).machine._members[worker], name, value)
    _take_behind(table, facts, tensors)
    for index in facts["unloaded"]:
        table.cell(index).loaded = False
    if any(name.startswith(f"{spec.number}/{OTHER}/") for name in tensors):
        table.halves()
        for index in table.partitions():
            other = table.cell(index).values._weights.other
            assert other is not None
            other.copy_(tensors[f"{spec.number}/{OTHER}/{index}"])
    table.closer.reopen(facts["epoch"])
    table.started = facts["started"]
