"""One worker that takes two steps of a table of one partition over tcp: `one_step.py SERVERS`."""

from __future__ import annotations

import sys

import torch

import ps_worker as ps

if __name__ == "__main__":
    torch.set_num_threads(1)
    with ps.connect(servers=sys.argv[1], job="frames", carrier="tcp") as worker:
        table = worker.table({"w": torch.arange(40.0)}, optimizer=ps.SGD(lr=0.5, momentum=0.9))
        for step in range(2):
            table.push({"w": torch.full((40,), 1.0 + step)}).result()
            table.pull().result()
        worker.finish()
