"""Snapshots as a person handles them: list them, check them, make a model file of one.

Nothing here asks servers; `calls` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from ps_wire.errors import SnapshotCorrupt, SnapshotMissing, SnapshotUnusable, UsageError
from ps_wire.snapshot.manifest import FINAL_FILE, Manifest, shard_file, worker_file
from ps_wire.snapshot.store import SnapshotStore
from ps_wire.snapshot.tensors import TensorFile
from ps_wire.spec.table import ParameterSpec, TableSpec

WEIGHT = "weight"  # kind of a tensor, in its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A snapshot that has a manifest, or one that cannot be read.

    Attributes:
        job: whose.
        name: of the snapshot.
        manifest: or None.
        fault: why there is none; else empty.
    """

    job: str
    name: str
    manifest: Manifest | None
    fault: str = ""

    def to_json(self) -> dict[str, object]:
        """For programs."""
        known = self.manifest
        return {
            "job": self.job,
            "snapshot": self.name,
            "created": known.created if known else None,
            "step": known.step if known else None,
            "bytes": known.total_bytes if known else None,
            "num_shards": known.num_shards if known else None,
            "workers": sorted(known.workers) if known else None,
            "fault": self.fault or None,
        }


def find(store: SnapshotStore, job: str | None) -> list[Found]:
    """Snapshots of a job, or of all, the oldest first."""
    found = []
    for name in [job] if job is not None else store.jobs():
        for snapshot, known in reversed(list(store.newest_first(name))):
            if isinstance(known, SnapshotUnusable):
                found.append(Found(job=name, name=snapshot, manifest=None, fault=known.message))
            else:
                found.append(Found(job=name, name=snapshot, manifest=known))
    return found


def choose(store: SnapshotStore, job: str | None, snapshot: str | None) -> tuple[str, str]:
    """The job and the name that a person means: the only job, the newest snapshot, unless told otherwise.

    Raises:
        UsageError: there are several jobs.
        SnapshotMissing: there is none.
    """
    jobs = [job] if job is not None else [name for name in store.jobs() if store.names(name)]
    if len(jobs) > 1:
        raise UsageError(
            f"{store.url} has snapshots of several jobs ({', '.join(jobs)}): name one with --job"
        )
    names = store.names(jobs[0]) if jobs else []
    if snapshot is not None and snapshot not in names:
        there = f"there are {', '.join(names)}" if names else "there are none"
        raise SnapshotMissing(f"no snapshot {snapshot} in {store.url}: {there}")
    if not names:
        raise SnapshotMissing(f"no snapshot in {store.url}" + (f" of job {job}" if job else ""))
    return jobs[0], snapshot or names[-1]


def export(
    store: SnapshotStore, job: str, snapshot: str, to: Path, *, table: int | None = None
) -> dict[str, torch.Size]:
    """Writes the weights and buffers of a snapshot as one safetensors file, with names as in `state_dict`.

    Buffers are those of the lowest worker, or of the end. Names that tables share begin with the table's.

    Args:
        store: where the snapshot is.
        job: whose it is.
        snapshot: its name.
        to: the file.
        table: only this one.

    Returns:
        Names and shapes.

    Raises:
        SnapshotUnusable: it is not whole; an older one that is, is named.
        UsageError: it has no such table.
    """
    manifest = store.verify(job, snapshot)
    specs = manifest.tables
    if table is not None and table >= len(specs):
        raise UsageError(f"--table {table}: the snapshot has {len(specs)} tables")
    tensors: dict[tuple[int, str], torch.Tensor] = {}
    with ExitStack() as opened:
        names = [shard_file(shard, manifest.num_shards) for shard in range(manifest.num_shards)]
        names += [record.name for record in manifest.files if record.name == FINAL_FILE]
        names += [worker_file(worker) for worker in sorted(manifest.workers)[:1]]
        paths = [opened.enter_context(store.local(job, snapshot, name)) for name in names]
        files = [TensorFile(path, str(path)) for path in paths]
        for spec in specs:
            if table in (None, spec.number):
                parts = files[: manifest.num_shards]
                tensors |= {(spec.number, name): value for name, value in _weights(spec, parts)}
        for key in files[-1] if len(files) > manifest.num_shards else ():
            number, _, name = key.partition("/")
            if number.isdigit() and table in (None, int(number)):
                tensors[int(number), name] = files[-1][key]
        names_of = _names(tensors)
        safetensors.torch.save_file(
            {names_of[key]: value.contiguous().clone() for key, value in tensors.items()}, to
        )
    return {names_of[key]: value.shape for key, value in tensors.items()}


def _weights(spec: TableSpec, files: list[TensorFile]) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole parameters of a table."""
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    for file in files:
        for key in file:
            table, kind, offset, name = key.split("/", 3)
            if (int(table), kind) == (spec.number, WEIGHT):
                pieces.setdefault(name, {})[int(offset)] = file[key]
    for parameter in spec.parameters:
        parts = pieces.get(parameter.name, {})
        yield parameter.name, _shaped(parameter, [parts[offset] for offset in sorted(parts)])


def _shaped(parameter: ParameterSpec, parts: list[torch.Tensor]) -> torch.Tensor:
    flat = torch.cat(parts) if parts else torch.empty(0, dtype=getattr(torch, parameter.dtype))
    if flat.numel() != parameter.numel:
        raise SnapshotCorrupt(
            f"parameter {parameter.name!r} has {flat.numel()} elements in the snapshot, not {parameter.numel}"
        )
    if parameter.stride:
        return flat.as_strided(parameter.shape, parameter.stride)
    return flat.reshape(parameter.shape)


def _names(tensors: Mapping[tuple[int, str], torch.Tensor]) -> dict[tuple[int, str], str]:
    all_names = [name for _, name in tensors]
    return {
        (table, name): name if all_names.count(name) == 1 else f"{table}/{name}" for table, name in tensors
    }
