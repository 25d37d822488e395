"""A recorded run, played back: the status that its servers would have shown, at any moment of it.

Made of the records of steps alone, so it has no servers, leases or connections; clocks, waits and staleness
are those of steps that had ended by then. Who waits at the gate is held up by who is furthest behind.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np

from ps_lab.compare.folder import EXPERIMENT, RECORDS, RESULT
from ps_lab.compare.outcome import RunOutcome, decode
from ps_lab.compare.results import Numbers, Recording, read_recordings
from ps_lab.status.status import Job, Status, Table, TableWorker, Worker
from ps_lab.top.view import Film, View
from ps_wire.errors import UsageError

FRAME_S = 0.25
REST_S = 1.0  # between two looks of who watches the end


@dataclass(frozen=True, kw_only=True)
class Part:
    """One incarnation of a worker, with sums over its steps; N = steps.

    Attributes:
        recording: of it.
    """

    recording: Recording

    @cached_property
    def started_s(self) -> Numbers:
        """(N,) unix times."""
        return self.recording.started_unix_s

    @cached_property
    def ended_s(self) -> Numbers:
        """(N,) unix times."""
        return self.recording.ended_unix_s

    @cached_property
    def samples(self) -> Numbers:
        """(N,) by the end of each step."""
        return np.cumsum(self.recording.numbers("samples"))

    @cached_property
    def waited_s(self) -> Numbers:
        """(N,) by the end of each step."""
        recording = self.recording
        return np.cumsum(np.nan_to_num(recording.numbers("gate_s")) + recording.numbers("pull_s"))

    def over(self, unix_s: float) -> int:
        """Steps that have ended by then."""
        return int(np.searchsorted(self.ended_s, unix_s, side="right"))

    def at_gate(self, unix_s: float) -> bool:
        """Whether its step of that moment has computed, and waits for others."""
        index = self.over(unix_s)
        if index == len(self.recording.steps) or self.started_s[index] > unix_s:
            return False
        step = self.recording.steps[index]
        opens_s = float(self.ended_s[index]) - step.pull_s
        return opens_s - (step.gate_s or 0.0) <= unix_s < opens_s


@dataclass(frozen=True, kw_only=True)
class Playback:
    """A recorded run.

    Attributes:
        parts: of all jobs and workers, those without a step left out.
        events: unix time and text, in order.
    """

    parts: tuple[Part, ...]
    events: tuple[tuple[float, str], ...] = ()

    @property
    def begin_s(self) -> float:
        """Unix time of the first step's beginning."""
        return min(float(part.started_s[0]) for part in self.parts)

    @property
    def end_s(self) -> float:
        """Unix time of the last step's end."""
        return max(float(part.ended_s[-1]) for part in self.parts)

    def only(self, job: str | None) -> Playback:
        """The same, of this job alone; None: of all.

        Raises:
            UsageError: there is no such job.
        """
        parts = tuple(part for part in self.parts if job in (None, part.recording.header.job))
        if not parts:
            names = sorted({part.recording.header.job for part in self.parts})
            raise UsageError(f"no steps of the job {job!r} were recorded there, but of {', '.join(names)}")
        return replace(self, parts=parts)

    def at(self, unix_s: float) -> Status:
        """The status of a moment."""
        begun = [part for part in self.parts if part.started_s[0] <= unix_s]
        jobs = groupby(begun, key=lambda part: part.recording.header.job)
        return Status(shards=(), jobs=tuple(self._job(name, list(parts), unix_s) for name, parts in jobs))

    def _job(self, name: str, begun: Sequence[Part], unix_s: float) -> Job:
        mine = [part for part in self.parts if part.recording.header.job == name]
        latest = {part.recording.header.worker: part for part in begun}  # the last incarnation of each
        states = {worker: _state(part, mine, unix_s) for worker, part in latest.items()}
        clocks = {worker: _clock(part, unix_s) for worker, part in latest.items()}
        members = [clocks[worker] for worker, state in states.items() if state == "running"]
        behind = [
            worker for worker in clocks if states[worker] == "running" and clocks[worker] == min(members)
        ]
        workers = tuple(
            _worker(part, states[worker], [other for other in behind if other != worker], unix_s)
            for worker, part in sorted(latest.items())
        )
        header = mine[0].recording.header
        return Job(
            name=name,
            consistency=header.consistency,
            num_workers=header.num_workers,
            min_workers=0,
            nonfinite="",
            state="running" if members else "ended",
            epoch=0,
            events={},
            happened=tuple(text for at_s, text in self.events if at_s <= unix_s),
            epochs=(),
            workers=workers,
            tables=(_table(begun, clocks, states, unix_s),),
        )


def open_playback(folder: Path) -> Playback:
    """The recorded run of a folder.

    Args:
        folder: that `PS_RECORD` named, or of a run of a comparison.

    Raises:
        UsageError: it has no recorded step, or is damaged.
    """
    if (folder / EXPERIMENT).is_file():
        raise UsageError(f"{folder} has many runs: name one of {folder / 'runs'}", folder=str(folder))
    records = folder / RECORDS
    found = read_recordings(records if records.is_dir() else folder) if folder.is_dir() else ()
    parts = tuple(Part(recording=one) for one in found if one.steps)
    if not parts:
        raise UsageError(f"{folder} has no recorded steps (PS_RECORD)", folder=str(folder))
    result = folder / RESULT
    try:
        outcome = decode(result.read_text(encoding="utf-8")) if result.is_file() else None
    except (UsageError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{result}: {error}") from None
    return Playback(parts=parts, events=() if outcome is None else _events(outcome))


def frames(
    playback: Playback, source: str, speed: float, *, pause: Callable[[float], object] = time.sleep
) -> Iterator[View]:
    """One view after the other, `speed` times as fast as the run was; the last one stays, for ever."""
    film = Film(source)
    begin_s, whole_s = playback.begin_s, playback.end_s - playback.begin_s
    passed_s = 0.0
    while passed_s < whole_s:
        view = film.add(playback.at(begin_s + passed_s), passed_s)
        yield replace(view, source=f"{source}: {passed_s:.1f} of {whole_s:.1f} s")
        pause(FRAME_S)
        passed_s += FRAME_S * speed
    view = film.add(playback.at(playback.end_s), whole_s)
    while True:
        yield replace(view, source=f"{source}: all {whole_s:.1f} s; Ctrl-C ends")
        pause(REST_S)


def _clock(part: Part, unix_s: float) -> int:
    over = part.over(unix_s)
    return part.recording.steps[over - 1].clock + 1 if over else part.recording.steps[0].clock


def _state(part: Part, all_parts: Sequence[Part], unix_s: float) -> str:
    if unix_s < part.ended_s[-1]:
        return "running"
    header = part.recording.header
    comes_again = any(
        other.recording.header.worker == header.worker
        and other.recording.header.incarnation > header.incarnation
        for other in all_parts
    )
    return "lost" if comes_again else "finished"


def _worker(part: Part, state: str, behind: Sequence[int], unix_s: float) -> Worker:
    header, over = part.recording.header, part.over(unix_s)
    metrics: dict[str, float] = {}
    for step in part.recording.steps[:over]:
        metrics.update(step.metrics)
        if step.loss is not None:
            metrics["loss"] = step.loss
    waits = f"at the gate, for {_named(behind)}" if behind and part.at_gate(unix_s) else ""
    return Worker(
        worker=header.worker,
        incarnation=header.incarnation,
        host=header.host,
        pid=0,
        state=state,
        step=_clock(part, unix_s),
        samples=int(part.samples[over - 1]) if over else 0,
        waited_s=float(part.waited_s[over - 1]) if over else 0.0,
        heartbeat_age_s=0.0,
        lease_left_s=None,
        metrics=metrics,
        waits=waits,
        passed_over="",
    )


def _named(workers: Sequence[int]) -> str:
    return f"worker{'s' if len(workers) > 1 else ''} {', '.join(map(str, sorted(workers)))}"


def _table(parts: Sequence[Part], clocks: dict[int, int], states: dict[int, str], unix_s: float) -> Table:
    steps = [step for part in parts for step in part.recording.steps[: part.over(unix_s)]]
    versions = [step.version_applied + 1 for step in steps if step.version_applied is not None]
    newest = max(versions, default=max((step.clock + 1 for step in steps), default=0))
    return Table(
        table=0,
        partitions=1,
        min_version=newest,
        max_version=newest,
        bytes_in=sum(step.bytes_up for step in steps),
        bytes_out=sum(step.bytes_down for step in steps),
        weight_bytes=0,
        optimizer_bytes=0,
        hyper_mismatches=0,
        mixed_steps=0,
        tau_counts=Counter(step.tau for step in steps if step.tau is not None),
        workers=tuple(
            TableWorker(
                worker=worker,
                member=states[worker] == "running",
                min_clock=clock,
                max_clock=clock,
                max_gap=0,
                received=0,
                applied=0,
                dropped=0,
                missed=0,
                abstained=0,
                duplicates=0,
                gate_wait_s=0.0,
                carriers=(),
                ranks=(),
            )
            for worker, clock in sorted(clocks.items())
        ),
    )


def _events(outcome: RunOutcome) -> tuple[tuple[float, str], ...]:
    found = [(it.unix_s, f"worker {it.worker}: {it.kind}") for it in outcome.faults]
    for look in outcome.evaluations:
        values = "  ".join(f"{name} {value:.4g}" for name, value in sorted(look.values.items()))
        found.append((look.unix_s, f"evaluation: {values}"))
    return tuple(sorted(found))
