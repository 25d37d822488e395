"""What recording costs a worker: processor time of a step with `record`, less that of one without.

Alone, with a server inside the process, so that nothing else has a part in it; the two are measured in turns
in one process, and the median of the turns counts. Beside other load the difference is smaller than what one
turn differs from the next; so the recorder is measured by itself, too.

    python -m benchmarks.record_cost
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import ps_worker as ps
from ps_worker.recording.columns import RecordHeader
from ps_worker.recording.recorder import StepRecorder, StepTotals

WARM = 20


def run(job: str, steps: int, width: int, record: Path | None) -> float:
    """Seconds of processor time per step, of all threads."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()
    )
    batch = torch.randn(64, width)
    with ps.connect(job=job, servers="none", record=record) as worker:
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
        began_s = 0.0
        for step in range(WARM + steps):
            if step == WARM:
                began_s = time.process_time()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            worker.log(loss=float(step))
        return (time.process_time() - began_s) / steps


def alone(folder: Path, steps: int) -> float:
    """Seconds of processor time per step of a recorder whose worker does nothing else, with one partition."""
    header = RecordHeader(
        unix_s=0.0, job="alone", worker=0, incarnation=1, consistency="asp", num_workers=1, host="here"
    )
    recorder = StepRecorder(folder, warn=print)
    recorder.enter(header)
    began_s = time.process_time()
    for clock in range(steps):
        recorder.batch()
        recorder.called()
        recorder.sending(clock, StepTotals())
        recorder.acknowledged(clock, gap=1, read=clock, applied=clock, dropped=False, abstained=False)
        recorder.asked()
        recorder.pulled(clock, 0.0)
        recorder.stepped(64)
        recorder.log("loss", 0.5)
    recorder.close(StepTotals())
    return (time.process_time() - began_s) / steps


def main() -> None:
    """Prints both, and their difference as a share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024, help="of the two layers of the model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            plain.append(run(f"plain-{turn}", options.steps, options.width, None))
            recorded.append(run(f"recorded-{turn}", options.steps, options.width, Path(folder)))
        alone_s = alone(Path(folder), 10_000)
    without_s, with_s = statistics.median(plain), statistics.median(recorded)
    share = (with_s - without_s) / without_s
    print(
        f"a step without a record {without_s * 1e3:.3f} ms, with one {with_s * 1e3:.3f} ms: "
        f"{(with_s - without_s) * 1e6:.0f} us, {share:+.2%}\n"
        f"the recorder by itself: {alone_s * 1e6:.1f} us a step, {alone_s / without_s:.2%}"
    )


if __name__ == "__main__":
    main()
