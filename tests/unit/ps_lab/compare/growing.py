"""Records that grow while a test looks at them."""

from __future__ import annotations

from pathlib import Path

from ps_lab.compare.metrics import RunFigures
from ps_lab.compare.progress import LoggedTarget
from ps_lab.compare.results import RunData, read_recordings
from ps_lab.experiments.experiment import Target, parse
from ps_lab.experiments.plan import runs
from ps_worker.recording.columns import RecordHeader, StepRecord, encode, encode_header, file_name

from .made import EXPERIMENT, START_UNIX_S

LOSS = Target(metric="loss", value=1.0, larger_is_better=False)
STEP_S = 0.1


class Records:
    """Of workers whose steps a test writes, with a clock that it turns."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.now_s = 0.0
        self._files = []
        for worker in range(workers):
            header = RecordHeader(
                unix_s=START_UNIX_S,
                job="made",
                worker=worker,
                incarnation=1,
                consistency="asp",
                num_workers=workers,
                host="here",
            )
            self._files.append((folder / file_name(header), []))
            self._files[-1][0].write_text(encode_header(header))

    def step(self, worker: int, ended_s: float, *, loss: float | None = None, **metrics: float) -> None:
        path, steps = self._files[worker]
        zeros = dict.fromkeys(StepRecord.__slots__, 0) | {"tau": None, "gap": None, "version_applied": None}
        zeros |= {"version_read": None, "step": len(steps), "clock": len(steps), "samples": 4}
        times = {
            "started_s": max(ended_s - STEP_S, 0.0),
            "ended_s": ended_s,
            "loss": loss,
            "metrics": metrics,
        }
        steps.append(StepRecord(**zeros | times))
        with path.open("a") as file:
            file.write(encode(steps[-1]))

    def watch(self, target: Target = LOSS) -> LoggedTarget:
        return LoggedTarget(self.folder, target, len(self._files), lambda: self.now_s)

    def target_s(self, target: Target = LOSS) -> float | None:
        text = EXPERIMENT.replace("workers = 4", f"workers = {len(self._files)}")
        data = RunData(
            run=runs(parse(text))[0], facts=None, outcome=None, recordings=read_recordings(self.folder)
        )
        return RunFigures(data, target).target_s
