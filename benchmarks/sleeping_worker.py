"""A worker that sleeps in place of computing, with a table of four numbers: for `instrument.py`."""

import argparse
import os
import time

import torch

import ps_worker as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--compute-s", type=float, default=0.08)
    args = parser.parse_args()
    with ps.connect() as worker:
        table = worker.table({"w": torch.zeros(4)}, optimizer=ps.SGD(lr=1.0))
        gradient = {"w": torch.ones(4)}
        if os.environ["PS_CONSISTENCY"] == "asp":  # who begins together pushes together for ever
            time.sleep(args.compute_s * worker.rank / worker.num_workers)
        for step in range(args.steps):
            time.sleep(args.compute_s)
            table.push(gradient)
            table.pull().result()
            worker.log(loss=1.0 / (step + 1))
        worker.finish()


if __name__ == "__main__":
    main()
