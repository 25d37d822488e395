"""How long who joins waits while another job opens as large a table as there may be.

    python benchmarks/join_beside.py --times 5

One server. A process says what a table of 65,536 parameters and 32,768 partitions (128 MiB) is, which the
server reads, checks, lays out and opens; meanwhile this process joins one job after the other. Prints a JSON
line: the seconds that such a table took, and milliseconds of the join that took longest beside it, and of the
longest of as many without it; medians over `--times` tables, and the worst.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import grpc

from ps_lab.cluster.cluster import Cluster
from ps_wire.access.channel import CLIENT
from ps_wire.frames.frame import PROTOCOL
from ps_wire.frames.messages import table_to_proto
from ps_wire.spec.table import (
    MAX_PARAMETERS,
    BucketOptions,
    Hyperparameters,
    OptimizerSpec,
    ParameterSpec,
    TableSpec,
)
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub

NAME = 100  # characters of a parameter's
NUMEL = 512  # of a parameter: two of them are a partition
LIMIT_S = 120.0
_jobs = itertools.count()


class Member:
    """The only worker of a job, which has joined."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._said: queue.SimpleQueue[pb.MemberRequest | None] = queue.SimpleQueue()
        self._replies = CoordinatorStub(channel).Member(iter(self._said.get, None), timeout=LIMIT_S)
        job = spec_pb2.Job(name=f"job-{time.monotonic_ns()}-{next(_jobs)}", consistency="asp", num_workers=1)
        self.ask("joined", join=pb.Join(protocol=PROTOCOL, job=job, worker=0, host="raw", pid=1))

    def ask(self, answer: str, **message: object) -> None:
        """Says this, and waits for that."""
        self._said.put(pb.MemberRequest(**message))
        for reply in self._replies:
            if reply.HasField("refused"):
                raise SystemExit(reply.refused.message)
            if reply.WhichOneof("kind") == answer:
                return

    def leave(self) -> None:
        """In order; the job is forgotten."""
        self.ask("left", leave=pb.Leave(reason="it was enough"))
        self._said.put(None)


def largest() -> TableSpec:
    """As many parameters, and on one shard as many partitions, as there may be."""
    return TableSpec(
        number=0,
        parameters=tuple(
            ParameterSpec(name=f"{number:05}.{'x' * (NAME - 6)}", shape=(NUMEL,))
            for number in range(MAX_PARAMETERS)
        ),
        optimizer=OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),),))),
        buckets=BucketOptions(partition_bytes=8 * NUMEL),
    )


def open_tables(address: str) -> None:
    """The other process: at each line of stdin a table; says the seconds."""
    message = pb.MakeTable(table=table_to_proto(largest()))
    with grpc.insecure_channel(address, options=CLIENT) as channel:
        for _ in sys.stdin:
            member = Member(channel)
            begin_s = time.monotonic()
            member.ask("table_made", make_table=message)
            print(time.monotonic() - begin_s, flush=True)
            member.leave()


def joins(channel: grpc.Channel, goes_on: Callable[[int], bool]) -> list[float]:
    """Milliseconds of joins, one after the other."""
    took: list[float] = []
    while goes_on(len(took)):
        begin_s = time.monotonic()
        member = Member(channel)
        took.append(1e3 * (time.monotonic() - begin_s))
        member.leave()
    return took


def _is_open(thread: threading.Thread, _count: int) -> bool:
    return thread.is_alive()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--opens", metavar="ADDRESS", help="be the other process")
    given = parser.parse_args()
    if given.opens:
        open_tables(given.opens)
        return
    tables_s: list[float] = []
    beside: list[float] = []
    alone: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(num_servers=1, on_line=lambda _name, _line: None))
        channel = stack.enter_context(grpc.insecure_channel(cluster.addresses[0], options=CLIENT))
        command = [sys.executable, __file__, "--opens", cluster.addresses[0]]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(other.wait)
        assert other.stdin is not None
        assert other.stdout is not None
        stack.callback(other.stdin.close)
        joins(channel, lambda count: count < 10)
        for _ in range(given.times):
            other.stdin.write("now\n")
            other.stdin.flush()
            heard = threading.Thread(target=lambda: tables_s.append(float(other.stdout.readline())))
            heard.start()
            took = joins(channel, partial(_is_open, heard))
            beside.append(max(took))
            alone.append(max(joins(channel, partial(operator.gt, len(took)))))
    figures = {
        "table_s": statistics.median(tables_s),
        "join_beside_ms": statistics.median(beside),
        "join_beside_worst_ms": max(beside),
        "join_alone_ms": statistics.median(alone),
        "join_alone_worst_ms": max(alone),
    }
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
