"""The record of a worker's steps, as it goes: what each took, and what became of its push; to one file.

    batch ... called, sending, [asked], stepped   one step, by the thread that trains
    acknowledged, pulled, resent                  what connections hear of it meanwhile

A step's record is written when the next one has been sent: by then its weights are here, and what became of
its push is known. A file that cannot be written ends the record and not the run. It must not know the
network, nor optimizers; what it is not told is null in the record.

`_lock` guards `_heard`, which connections write; the rest is the training thread's.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import torch

from ps_worker.recording import columns

FLUSH_S = 1.0  # a process that is killed leaves all but its last second
GAVE_UP = "no step is recorded any more"  # in the warning of a recorder that cannot write
BUFFER_BYTES = 1 << 18  # so many steps are not written before that


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sums that grow over a worker's steps.

    Attributes:
        waited_s: in which training had nothing to do but wait for weights.
        bytes_up: of pushes.
        bytes_down: of weights.
    """

    waited_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(slots=True)
class _Heard:
    """A step as connections have heard of it; times of the recorder's clock."""

    gap: int | None = None
    tau: int | None = None
    read: int | None = None
    applied: int | None = None
    dropped: int = 0
    abstained: int = 0
    resent: int = 0
    gate_s: float | None = None
    came_s: float = 0.0
    spread: int | None = None


@dataclass(slots=True)
class _Step:
    """One step that has been sent, until it is written."""

    clock: int
    sent_s: float
    called_s: float = 0.0
    asked_s: float | None = None
    ended_s: float | None = None
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    after: StepTotals | None = None
    used_s: float = 0.0
    called_used_s: float = 0.0


class StepRecorder:
    """Writes one line per step. A `TrafficListener`."""

    def __init__(
        self,
        folder: Path,
        *,
        warn: Callable[[str], None],
        certain: bool = True,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        """Has no file; `enter` makes one.

        Args:
            folder: made if it is not there.
            warn: told, once, that the file cannot be written.
            certain: what a shard has taken will be applied. Where it may leave out what is not finite after
                it has said so, which version a push is applied at is not known.
            clock: seconds that only grow.
            unix: seconds since 1970.
            used: processor time of this process.
        """
        self._folder = folder
        self._warn = warn
        self._certain = certain
        self._clock = clock
        self._used = used
        self._used_s = used()  # at the end of the step that was written last
        self._zero_s = clock()
        self.unix_s = unix()
        self._file: TextIO | None = None
        self._failed = False
        self._lock = threading.Lock()
        self._heard: dict[int, _Heard] = {}
        self._count = 0
        self._sent: _Step | None = None  # the one that was sent last
        self._before: _Step | None = None  # the one before it, which is not written yet
        self._begun = False  # the next step has begun: what is logged is of it
        self._logged: dict[str, float] = {}
        self._totals = StepTotals()
        self._start_s = self._now()
        self._called_s = 0.0
        self._called_used_s = self._used_s
        self._flushed_s = 0.0

    # -- the training thread ---------------------------------------------------------------------------

    def header(
        self, *, job: str, worker: int, incarnation: int, consistency: str, num_workers: int
    ) -> columns.RecordHeader:
        """A header for `enter`, of this process on this machine; arguments are those of `RecordHeader`."""
        return columns.RecordHeader(
            unix_s=self.unix_s,
            job=job,
            worker=worker,
            incarnation=incarnation,
            consistency=consistency,
            num_workers=num_workers,
            host=platform.node(),
            versions={"python": platform.python_version(), "torch": str(torch.__version__)},
        )

    def enter(self, header: columns.RecordHeader, clock: int = 0) -> None:
        """Another incarnation begins, whose first step has this clock: its file, with its header."""
        self.close(self._totals)
        self._count, self._start_s, self._used_s = clock, self._now(), self._used()
        if self._failed:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / columns.file_name(header)
            self._file = path.open("w", encoding="utf-8", buffering=BUFFER_BYTES)
        except OSError as error:
            self._give_up(error)
            return
        self._write(columns.encode_header(header))
        self.flush()

    def batch(self) -> None:
        """The script begins to compute another step."""
        self._begun = True

    def log(self, name: str, number: float) -> None:
        """A metric, of the step whose batch was drawn last."""
        step = None if self._begun else self._sent
        (self._logged if step is None else step.metrics)[name] = number

    def called(self) -> None:
        """The script has called a step, or what else it calls: it does not compute."""
        self._called_s, self._called_used_s = self._now(), self._used()

    def sending(self, clock: int, totals: StepTotals) -> None:
        """The first push of the step of this clock is about to leave; weights of before are here."""
        sent = self._sent
        if sent is not None:
            if sent.ended_s is None or clock <= sent.clock:
                return  # another optimizer's, of the same step
            sent.after, self._before = totals, sent
        self._sent = _Step(clock, self._now(), metrics=self._logged)
        self._logged, self._begun = {}, False

    def asked(self) -> None:
        """See `TrafficListener`."""
        if self._sent is not None and self._sent.ended_s is None:
            self._sent.asked_s = self._now()

    def stepped(self, samples: int) -> None:
        """The step that was sent is over for the script, and is of so many samples."""
        sent = self._sent
        if sent is None:
            return
        sent.ended_s, sent.called_s = self._now(), self._called_s
        sent.used_s, sent.called_used_s = self._used(), self._called_used_s
        sent.samples += samples
        self._write_before()

    def close(self, totals: StepTotals) -> None:
        """No step follows; the file is whole. May be called again."""
        sent, self._sent = self._sent, None
        self._write_before()
        if sent is not None and sent.ended_s is not None:
            sent.after, self._before = totals, sent
            self._write_before()
        self._totals = totals
        self._begun, self._before = False, None
        with self._lock:
            self._heard.clear()
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._give_up(error)

    def flush(self) -> None:
        """Sees to it that what was written is in the file."""
        self._flushed_s = self._now()
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    # -- connections -----------------------------------------------------------------------------------

    def acknowledged(
        self, clock: int, *, gap: int, read: int, applied: int | None, dropped: bool, abstained: bool
    ) -> None:
        """See `TrafficListener`."""
        with self._lock:
            heard = self._of(clock)
            heard.gap = max(gap, heard.gap or 0)
            heard.dropped += dropped
            heard.abstained += abstained
            known = -1 if heard.tau is None else heard.tau
            if applied is not None and self._certain and applied - read > known:
                heard.tau, heard.read, heard.applied = applied - read, read, applied

    def pulled(self, clock: int, waited_s: float | None) -> None:
        """See `TrafficListener`."""
        now_s = self._now()
        with self._lock:
            heard = self._of(clock)
            heard.came_s = now_s
            if waited_s is not None:
                heard.gate_s = max(heard.gate_s or 0.0, waited_s)

    def spread(self, clock: int, updates: int) -> None:
        """See `TrafficListener`."""
        with self._lock:
            heard = self._of(clock)
            heard.spread = max(updates, heard.spread or 0)

    def resent(self, clock: int) -> None:
        """See `TrafficListener`."""
        with self._lock:
            self._of(clock).resent += 1

    # -- inside ----------------------------------------------------------------------------------------

    def _of(self, clock: int) -> _Heard:
        found = self._heard.get(clock)
        if found is None:
            found = self._heard[clock] = _Heard()
        return found

    def _now(self) -> float:
        return self._clock() - self._zero_s

    def _write_before(self) -> None:
        """The step before is over in every respect."""
        step, self._before = self._before, None
        if step is None or step.after is None or step.ended_s is None:
            return
        with self._lock:
            heard = self._heard.get(step.clock) or _Heard()
            for clock in [known for known in self._heard if known <= step.clock]:
                del self._heard[clock]
        before, after, self._totals = self._totals, step.after, step.after
        used_s = max(step.used_s - self._used_s, 0.0)
        computed_s = min(max(step.called_used_s - self._used_s, 0.0), used_s)
        self._used_s = step.used_s
        started_s = self._start_s
        ended_s = self._start_s = max(step.ended_s, heard.came_s, started_s)
        whole_s = ended_s - started_s
        sent_s = max(step.sent_s, min(step.called_s, step.ended_s))
        until_s = step.ended_s if step.asked_s is None else step.asked_s
        push_s = min(max(until_s - sent_s, 0.0), whole_s)
        waited_s = min(max(after.waited_s - before.waited_s, 0.0), whole_s - push_s)
        loss = step.metrics.pop("loss", None)
        record = columns.StepRecord(
            step=self._count,
            clock=step.clock,
            version_read=heard.read,
            version_applied=heard.applied,
            tau=heard.tau,
            gap=heard.gap,
            started_s=round(started_s, 6),
            ended_s=round(ended_s, 6),
            compute_s=round(whole_s - push_s - waited_s, 6),
            push_s=round(push_s, 6),
            gate_s=None if heard.gate_s is None else round(heard.gate_s, 6),
            pull_s=round(max(waited_s - (heard.gate_s or 0.0), 0.0), 6),
            bytes_up=after.bytes_up - before.bytes_up,
            bytes_down=after.bytes_down - before.bytes_down,
            samples=step.samples,
            loss=loss,
            metrics=_first(step.metrics),
            dropped=heard.dropped,
            abstained=heard.abstained,
            retried=heard.resent,
            cpu_s=round(used_s, 6),
            compute_cpu_s=round(computed_s, 6),
            spread=heard.spread,
        )
        self._count += 1
        self._write(columns.encode(record))
        if self._now() - self._flushed_s >= FLUSH_S:
            self.flush()

    def _write(self, line: str) -> None:
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The record ends here; the training goes on."""
        file, self._file, self._failed = self._file, None, True
        if file is not None:
            with suppress(OSError):  # what is buffered can go nowhere
                file.close()
        self._warn(f"WARNING: {GAVE_UP} in {self._folder}: {error}")


def _first(metrics: dict[str, float]) -> dict[str, float]:
    """As many as a record holds, by names that fit."""
    fit = {name: value for name, value in metrics.items() if 0 < len(name) <= columns.MAX_NAME}
    return dict(list(fit.items())[: columns.MAX_METRICS])
