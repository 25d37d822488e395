"""A worker's script: `ps-worker trainer.py STEPS FINAL` trains to STEPS and writes the final weights."""

from __future__ import annotations

import os
import sys
import time

import ps_worker as ps
from tests.faults.scenario import BUCKETS, OPTIMIZER, gradient, start

COMPUTE_S = float(os.environ.get("COMPUTE_S", "0"))  # what a step takes


def main(steps: int, final: str) -> None:
    rolled_back = {"on_rollback": print} if "ROLLBACKS" in os.environ else {}
    with ps.connect(**rolled_back) as worker:
        table = worker.table({"w": start()}, optimizer=OPTIMIZER, buckets=BUCKETS)
        version = -1
        while table.step < steps and not worker.ended:  # it may come back to a job that has ended
            table.push({"w": gradient(worker.rank, table.step)})
            pulled = table.pull().result()
            assert pulled.version >= version or rolled_back, (pulled.version, version)
            version = pulled.version
            print("step", table.step, flush=True)
            time.sleep(COMPUTE_S)
        worker.finish()
        table.pull().result().values["w"].numpy().tofile(final)
        print("finished", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
