"""A worker's script: `ps-worker trainer.py STEPS FINAL` trains to STEPS and writes the final weights.

Where the environment names a file, it trains on until that is there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ps_worker as ps
from tests.faults.scenario import BUCKETS, OPTIMIZER, gradient, start

OVER = "FAULTS_OVER"


def main(steps: int, final: str) -> None:
    rolled_back = {"on_rollback": print} if "ROLLBACKS" in os.environ else {}
    with ps.connect(**rolled_back) as worker:
        table = worker.table({"w": start()}, optimizer=OPTIMIZER, buckets=BUCKETS)
        version = -1
        while not (worker.ended or (table.step >= steps and is_over())):  # it may come back to one that ended
            table.push({"w": gradient(worker.rank, table.step)})
            pulled = table.pull().result()
            assert pulled.version >= version or rolled_back, (pulled.version, version)
            version = pulled.version
            print("step", table.step, flush=True)
        worker.finish()
        table.pull().result().values["w"].numpy().tofile(final)
        print("finished", flush=True)


def is_over() -> bool:
    """Whether nobody wants to do anything more to the job."""
    return OVER not in os.environ or Path(os.environ[OVER]).exists()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
