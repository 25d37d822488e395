"""A shard's part of one snapshot: partitions captured when their moment comes, then written on a thread.

A partition is copied under its cell's lock, and nothing else waits for anything here. Copies are kept until
all partitions have come and are written, so while it lasts a snapshot needs as much memory again as the job
has on this shard. It must not know the coordinator.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ps_server.log import logger
from ps_server.shard.partition.cell import Cell
from ps_server.shard.partition.cell_state import CellState
from ps_server.shard.partition.cut import CutKey
from ps_server.shard.state.codec import encode_cell, facts_text
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import InternalError, PsError
from ps_wire.process import watched
from ps_wire.snapshot import tensors as snapshot_tensors
from ps_wire.snapshot.manifest import FileRecord, shard_file
from ps_wire.snapshot.store import SnapshotStore

NO_READER = 0  # in a cut's key, where a reader has its number
NICENESS = 10  # of the thread that writes: training comes first
LIMIT_S = 90.0  # for all partitions to come: the coordinator gives up before
FACTS = "state"  # name of the facts in the file


class Saving:
    """One shard's part of one snapshot that is being captured and written. Thread-safe.

    Attributes:
        number: of the cut.
    """

    def __init__(
        self,
        store: SnapshotStore,
        *,
        job: str,
        snapshot: str,
        number: int,
        shard: int,
        num_shards: int,
        tables: Mapping[int, ShardTable],
    ) -> None:
        self.number = number
        self._store = store
        self._job = job
        self._snapshot = snapshot
        self._file = shard_file(shard, num_shards)
        self._tables = dict(tables)
        self._lock = threading.Lock()
        self._states: dict[int, dict[int, CellState]] = {number: {} for number in tables}
        self._waiting = sum(len(table.cells()) for table in tables.values())
        self._bytes = self._total_bytes = 0
        self._record: FileRecord | None = None
        self._counters = "{}"
        self._error: PsError | None = None
        self._over = False

    @property
    def _key(self) -> CutKey:
        return NO_READER, self.number

    def arm(self, clocks: Mapping[int, Mapping[int, int]]) -> None:
        """Captures each partition when it has the pushes below `clocks`, table -> worker -> step.

        Raises:
            CutAborted: a partition has later ones already; nothing is captured.
        """
        try:
            for number, table in self._tables.items():
                cells = zip(table.partitions(), table.cells(), strict=True)
                take = partial(self._take, number, {id(cell): index for index, cell in cells})
                table.cut.save(self._key, clocks.get(number, {}), take, limit_s=LIMIT_S)
        except BaseException:
            self.end()
            raise
        self._write_if_whole()

    def end(self) -> None:
        """Gives up what has not been captured, or written; what was kept back goes on."""
        with self._lock:
            self._over = True
        for table in self._tables.values():
            table.cut.end(self._key)

    def figures(self) -> tuple[int, int, int, FileRecord | None, str]:
        """Partitions that are waited for, bytes written and in all, the file once it is durable, counters.

        Raises:
            PsError: it could not be written.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._waiting, self._bytes, self._total_bytes, self._record, self._counters

    # -- inside ----------------------------------------------------------------------------------------

    def _take(self, table: int, indices: Mapping[int, int], cell: Cell) -> None:
        """The moment of one partition; under its cell's lock."""
        state = cell.dump()
        with self._lock:
            self._states[table][indices[id(cell)]] = state
            self._waiting -= 1
        self._write_if_whole()

    def _write_if_whole(self) -> None:
        with self._lock:
            if self._waiting or self._over:
                return
            self._over = True
        watched.thread("ps-snapshot", self._write, log=logger).start()

    def _write(self) -> None:
        with suppress(OSError, AttributeError):  # elsewhere than on Linux all threads are as nice
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            tensors, facts = self._encoded()
            with self._lock:
                self._total_bytes = sum(tensor.nbytes for tensor in tensors.values())
            parts = self._counted(snapshot_tensors.encode(tensors, {FACTS: facts_text(facts)}))
            record = self._store.write(self._job, self._snapshot, self._file, parts)
        except PsError as error:
            with self._lock:
                self._error = error
        except Exception as error:  # noqa: BLE001 - our bug: the coordinator must hear of it
            logger.exception("bug while a snapshot is written")
            with self._lock:
                self._error = InternalError.of(error)
        else:
            with self._lock:
                self._record = record
        finally:
            self._states.clear()

    def _encoded(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors: dict[str, torch.Tensor] = {}
        tables, counters = [], {}
        for number, states in self._states.items():
            partitions = []
            for index, state in sorted(states.items()):
                own, facts = encode_cell(self._tables[number].plan, number, index, state)
                tensors |= own
                partitions.append(facts)
            tables.append({"table": number, "partitions": partitions, "hyper": []})
            counters[number] = _counters(states)
        with self._lock:
            self._counters = json.dumps(counters)
        return tensors, {"tables": tables}

    def _counted(self, parts: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for part in parts:
            yield part
            with self._lock:
                self._bytes += len(part)


def _counters(states: Mapping[int, CellState]) -> dict[str, Any]:
    """Sums up what became of pushes, over partitions; `alike`: how many have the same history."""
    totals: Counter[str] = Counter()
    alike: Counter[str] = Counter()
    for state in states.values():
        machine = state.machine
        fates = {}
        for worker, ledger in sorted(machine.ledgers.items()):
            fate = {"applied": ledger.applied, "dropped": ledger.dropped, "abstained": ledger.abstained}
            totals.update(fate)
            fates[worker] = list(fate.values())
        totals["mixed_steps"] += machine.mixed_steps
        alike[json.dumps([fates, machine.mixed_steps])] += 1
    return {**totals, "alike": dict(alike)}
