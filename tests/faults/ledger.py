"""What a server applied, in order, written down as it happens: one file a process, one line a record.

A record is a JSON list: what, partition, then by kind. It is written under the lock of its partition, in one
call of the system, so the order of a partition's lines is that in which things happened, and what was written
is there although the process is killed right after. It must not know what the records are for.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class Writer:
    """A listener of spans, in a server process."""

    def __init__(self, folder: str) -> None:
        path = Path(folder) / f"{os.environ.get('FAULTS_NAME', 'server').replace(' ', '-')}-{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock, self._numbers = threading.Lock(), weakref.WeakKeyDictionary[Any, int]()
        self._next = itertools.count(os.getpid() << 32)
        self._write("begin", time.monotonic_ns())

    def enter(self, name: str, about: tuple[Any, ...], _named: dict[str, Any]) -> None:
        if name == "apply":
            cell, action = about[:2]
            pushes = [
                [item.worker, item.incarnation, item.step, item.weight, checksum(item.payload.values)]
                for item in action.contributions
            ]
            hyper = dict(action.contributions[0].payload.hyper.groups[cell.group])
            self._write("apply", cell._index, action.version, action.scale, pushes, hyper, self._number(cell))

    def leave(self, name: str, about: tuple[Any, ...], named: dict[str, Any]) -> None:
        if name == "stage":
            cell, item = about
            self._write("take", cell._index, item.worker, item.incarnation, item.step, self._number(cell))
        elif name == "restore":
            cell, state = about[:2]
            what = "take up" if named.get("going_on") else "restore"
            self._write(what, cell._index, state.machine.version, self._number(cell))
        elif name == "evict":
            cell, worker, incarnation = about[:3]
            self._write("evict", cell._index, worker, incarnation, self._number(cell))
        elif name == "reply":
            replies, step, version, clocks = about[:4]
            self._write("reply", replies.partition, step, version, list(clocks))

    def _number(self, cell: Any) -> int:
        """Of no other partition of a table, in no process: addresses are used again."""
        with self._lock:
            if cell not in self._numbers:
                self._numbers[cell] = next(self._next)
            return self._numbers[cell]

    def _write(self, *record: Any) -> None:
        os.write(self._file, f"{json.dumps(record)}\n".encode())


def checksum(values: torch.Tensor) -> int:
    """Of a gradient's bytes."""
    return zlib.crc32(values.contiguous().numpy())


def read(folder: Path) -> Iterator[list[Any]]:
    """All records: files in the order in which their processes began, lines as they were written.

    The last line of a process that was killed may be torn; it is no record.
    """
    files = [
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        for path in folder.iterdir()
    ]
    for records in sorted((records for records in files if records), key=lambda records: records[0][1]):
        yield from records
