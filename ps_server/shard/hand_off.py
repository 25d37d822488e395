"""The hand-off of a shard that is stopped in order: all it holds, in one file, for the process after it.

    STATE_DIR/hand-off-1.safetensors        written at the end; single use: whoever has read it renames it
    STATE_DIR/hand-off-1.safetensors.used   was used up; nobody looks at it any more

It is used up at one moment: when all that a start can fail at is done, and before the first call is taken.
Until then the process that reads it may fail, or be killed, and the next one finds it; from then on it is
void, for what the process holds changes.

It is for the same shard of the same number of shards, and counts as long as the coordinator has not gone on
without it: the successor comes with its predecessor's boot and generation (`registry`). It holds tables as
they stand, with what is staged, members and clocks; pushes that were not acknowledged are sent again.

Tables and jobs dump and load themselves; here their states are named and put into one file. It must not know
the coordinator: what that hands off is passed through.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ps_server.log import logger
from ps_server.shard import hand_off_file
from ps_server.shard.hand_off_file import HandOffFile
from ps_server.shard.job import ShardJob
from ps_server.shard.partition.cell_state import CellState
from ps_server.shard.partition.machine_state import MachineMember
from ps_server.shard.shard import Shard
from ps_server.shard.state.codec import TableReader, encode
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import ConfigurationRefused, MemoryLimitExceeded, SnapshotCorrupt
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.snapshot.writing import sync_folder, write_durably
from ps_wire.v1 import spec_pb2

FORMAT = 5
TRIAL_BYTES = 4096
FULL = (errno.ENOSPC, errno.EDQUOT)
JOB, MORE = "job", "more/"  # tensors' names begin with it: of a job, of what is passed through
OTHER = "other"  # of a tensor's name: the half that holds the version before
KEPT = "kept"  # likewise: weights of an older version, which a late worker works on

FLAGS = ("prepared", "fenced", "late", "asked")  # of a member of a partition

Facts = dict[str, Any]  # JSON
_File: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """The state that a process has from the one before it.

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


def check_writable(folder: Path, shard: int) -> None:
    """Whether something can be handed off there at the end, which is too late to hear that nothing can.

    On a full disk the server serves, and the log says so: room may be made while it does.

    Raises:
        ConfigurationRefused: nobody can write there; the folder is named.
    """
    trial = folder / f"trial-{shard}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            trial.write_bytes(bytes(TRIAL_BYTES))
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        why = f"--state-dir {folder}: {error.strerror}: this server could not hand on what it holds"
        if error.errno not in FULL:
            raise ConfigurationRefused(f"{why}; name a folder, or a volume, that it can write to") from None
        logger.warning("%s; make room there", why)


def write(folder: Path, shard: Shard, inherited: Inherited) -> None:
    """Writes all that a shard holds, durable on return. No thread works on it any more.

    Raises:
        PsError, OSError: it cannot be written: the successor begins with nothing.
    """
    tensors: dict[str, torch.Tensor] = {f"{MORE}{name}": it for name, it in inherited.tensors.items()}
    jobs = [dump_job(entry, tensors) for entry in shard.jobs()]
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
    write_durably(file_of(folder, shard.index), hand_off_file.encode(tensors, facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHandOff:
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


def find(folder: Path, shard: Shard) -> FoundHandOff | None:
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
        inherited = _take(HandOffFile(path), shard)
    except MemoryLimitExceeded as error:  # the same file fits where there is more
        raise ConfigurationRefused(
            f"the hand-off {path} is kept, and does not fit here: {error.message}; start this server with a "
            "larger --memory-limit, or with none"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever it is: it is said, and the shard counts as lost
        logger.exception("the hand-off %s cannot be used: %s", path, error)
        for entry in shard.jobs():
            shard.drop(entry.name)
    return FoundHandOff(path=path, written=written, inherited=inherited)


def _which(path: Path) -> _File:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _take(file: HandOffFile, shard: Shard) -> Inherited:
    facts: Facts = file.facts
    fits = facts["format"] == FORMAT and (facts["shard"], facts["num_shards"]) == (
        shard.index,
        shard.num_shards,
    )
    if not fits:
        raise SnapshotCorrupt(
            f"it is of shard {facts['shard']}/{facts['num_shards']} in format {facts['format']}; this is "
            f"shard {shard.index}/{shard.num_shards}, which reads format {FORMAT}"
        )
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name in file:
        kind, _, rest = name.partition("/")
        names[rest.partition("/")[0] if kind == JOB else ""].append(name)
    for job in facts["jobs"]:
        load_job(shard, job, {name: file[name] for name in names[job["name"]]})
    passed_on = {name.removeprefix(MORE): file[name].clone() for name in names[""] if name.startswith(MORE)}
    inherited = Inherited(
        boot=bytes.fromhex(facts["boot"]),
        coordinator=facts["coordinator"],
        more=facts["more"],
        tensors=passed_on,
    )
    shard.become(facts["generation"])
    return inherited


# -- jobs ----------------------------------------------------------------------------------------------


def dump_job(job: ShardJob, tensors: dict[str, torch.Tensor]) -> Facts:
    """A job with its tables as facts; their tensors, named, are put into `tensors`."""
    tables = []
    for number, table in sorted(job.tables.items()):
        own, facts = _dump_table(number, table)
        tensors |= {f"{JOB}/{job.name}/{name}": tensor for name, tensor in own.items()}
        tables.append(facts)
    return {**job.dump(), "tables": tables}


def load_job(shard: Shard, facts: Facts, file: Mapping[str, torch.Tensor]) -> None:
    """Puts a job into a shard that does not have it."""
    entry = ShardJob.load(facts)
    shard.put(entry)
    prefix = f"{JOB}/{entry.name}/"
    own: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)  # by table
    for key in file:
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            own[name.partition("/")[0]][name] = file[key]
    for table in facts["tables"]:
        _load_table(shard, entry.name, table, own[str(table["state"]["table"])])
    entry.load_members(facts)
    for opened in entry.tables.values():
        if opened.started:
            opened.resume()


def _dump_table(number: int, table: ShardTable) -> tuple[dict[str, torch.Tensor], Facts]:
    state = table.dump(going_on=True)
    machines = {index: cell.machine for index, cell in state.cells.items()}
    tensors, facts = encode(table.plan, number, state)
    for index, cell in state.cells.items():
        for version, kept in cell.tensors.kept.items():
            tensors[f"{number}/{KEPT}/{index}/{version}"] = kept
        if cell.tensors.other is not None:
            tensors[f"{number}/{OTHER}/{index}"] = cell.tensors.other
    return tensors, {
        "spec": table_to_proto(table.spec).SerializeToString().hex(),
        "opening": table.opening,
        "started": table.started,
        "epoch": state.membership_epoch,
        "unloaded": [index for index, cell in state.cells.items() if not cell.loaded],
        "flags": [
            [index, worker, [getattr(member, name) for name in FLAGS]]
            for index, machine in machines.items()
            for worker, member in machine.members.items()
            if member != MachineMember(incarnation=member.incarnation, clock=member.clock)
        ],
        "chosen": [
            [index, sorted(machine.chosen)]
            for index, machine in machines.items()
            if machine.chosen is not None
        ],
        "waiting": [[index, worker] for index, machine in machines.items() for worker in machine.late],
        "state": facts,
    }


def _load_table(shard: Shard, job: str, facts: Facts, tensors: Mapping[str, torch.Tensor]) -> None:
    spec = table_from_proto(spec_pb2.Table.FromString(bytes.fromhex(facts["spec"])))
    shard.open_table(job, spec, facts["opening"])
    table = shard.table(job, spec.number)
    state = TableReader(spec, [(tensors, facts["state"])]).going_on(table.plan, shard.index)
    beside = _Beside(facts, spec.number, tensors)
    cells = {index: beside.going_on(index, cell) for index, cell in state.cells.items()}
    table.load(replace(state, cells=cells, membership_epoch=facts["epoch"]), going_on=True)
    if facts["started"]:
        table.start()


class _Beside:
    """Facts of partitions that only who goes on at once needs, and a snapshot has not.

    By partition, since a table may have 32,768 of them.
    """

    def __init__(self, facts: Facts, table: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self._table = table
        self._tensors = tensors
        self._unloaded = set(facts["unloaded"])
        self._chosen = {index: frozenset(workers) for index, workers in facts["chosen"]}
        self._flags: defaultdict[int, dict[int, dict[str, bool]]] = defaultdict(dict)
        for index, worker, values in facts["flags"]:
            self._flags[index][worker] = dict(zip(FLAGS, values, strict=True))
        self._late: defaultdict[int, list[int]] = defaultdict(list)
        for index, worker in facts["waiting"]:
            self._late[index].append(worker)
        self._kept: defaultdict[int, dict[int, torch.Tensor]] = defaultdict(dict)
        prefix = f"{table}/{KEPT}/"
        for name in tensors:
            if name.startswith(prefix):
                index, _, version = name.removeprefix(prefix).partition("/")
                self._kept[int(index)][int(version)] = tensors[name]

    def going_on(self, index: int, cell: CellState) -> CellState:
        """A partition with it.

        Who is late has to be known before anybody pushes: it may have been told elsewhere where it goes on.
        """
        flags = self._flags[index]
        members = {
            worker: replace(member, **flags[worker]) if worker in flags else member
            for worker, member in cell.machine.members.items()
        }
        chosen, late = self._chosen.get(index), tuple(self._late[index])
        machine = replace(cell.machine, members=members, chosen=chosen, late=late)
        other = self._tensors.get(f"{self._table}/{OTHER}/{index}")
        held = replace(cell.tensors, other=other, kept=self._kept[index])
        return replace(cell, machine=machine, tensors=held, loaded=index not in self._unloaded)
