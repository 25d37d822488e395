"""What a round costs the servers with many workers, beside what it costs with few.

    python benchmarks/many_workers.py --workers 64 --rounds 50

Four servers and one bsp job with a table of 1 MiB in 16 tensors, once with 8 workers and once with many; both
take turns. All workers of a job are threads of one process, so that they fit: what is measured is processor
time of the servers, for each round and worker, and so for the same bytes. Prints one JSON line: that of each
job in seconds, and their quotient. Target: 1.3.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack

from party import Party

from ps_lab.bench import usage

FEW = 8
TURNS = 5
SCRIPT = """
import sys, threading, torch, ps_worker as ps
torch.set_num_threads(1)
count = int(sys.argv[1])
tensors = {str(i): torch.ones(1 << 14) for i in range(16)}
barrier, turns = threading.Barrier(count + 1), []

def work(number):
    with ps.connect(worker=number, num_workers=count) as worker:
        table = worker.table(tensors, optimizer=ps.SGD(lr=1e-6))
        while True:
            barrier.wait()
            for _ in range(turns[-1]):
                table.push(tensors)
                table.pull(tensors).result()
            barrier.wait()

for number in range(count):
    threading.Thread(target=work, args=(number,), daemon=True).start()
for line in sys.stdin:
    turns.append(int(line))
    barrier.wait()
    barrier.wait()
    print("done", flush=True)
"""


class Measured:
    """A job of its own on servers of its own, and what a worker's share of a round costs these."""

    def __init__(self, stack: ExitStack, workers: int, servers: int, carrier: str) -> None:
        self._workers = workers
        own = {"PS_JOB": "many", "PS_CARRIER": carrier, "PS_LOG_LEVEL": "error"}
        limits = {"PS_START_LIMIT": "300", "PS_CONNECT_LIMIT": "300"}
        self._party = Party(
            stack, SCRIPT, str(workers), servers=servers, environment=os.environ, **own, **limits
        )
        self.cpu_s: list[float] = []  # of a worker's share of a round

    def turn(self, rounds: int) -> float:
        """Processor time of the servers, by worker and round."""
        before = usage.cpu_s(self._party.servers)
        self._party.turn(rounds)
        after = usage.cpu_s(self._party.servers)
        assert before is not None
        assert after is not None
        return (after - before) / rounds / self._workers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=50, help="of many workers; few take as many pushes")
    parser.add_argument("--carrier", default="auto")
    options = parser.parse_args()
    with ExitStack() as stack:
        few, many = (
            Measured(stack, workers, options.servers, options.carrier) for workers in (FEW, options.workers)
        )
        of_few = options.rounds * options.workers // FEW
        for party, rounds in ((few, of_few), (many, options.rounds)):
            party.turn(max(rounds // 10, 1))  # the first rounds map memory
        for _ in range(TURNS):
            few.cpu_s.append(few.turn(of_few))
            many.cpu_s.append(many.turn(options.rounds))
    cpu_s = {str(FEW): min(few.cpu_s), str(options.workers): min(many.cpu_s)}
    print(json.dumps({"ratio": min(many.cpu_s) / min(few.cpu_s), "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
