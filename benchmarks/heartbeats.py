"""What the heartbeats of many workers cost the coordinator.

    python benchmarks/heartbeats.py --workers 1000

One server; this process says for each worker what a worker says: it joins, over a connection of its own, and
beats as often as one does, with a progress as a script's that trains. Prints one JSON line: processor time of
the server over the time that passed, while they are silent and while they beat. Target: 20 % of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import grpc.aio

from ps_lab.cluster.cluster import Cluster
from ps_wire.access.channel import CLIENT
from ps_wire.frames.frame import PROTOCOL
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_worker.membership.member_stream import HEARTBEAT_S

LEASE_S = 60.0  # nobody is to be evicted where this process is what is too slow
JOINING = 50  # at a time
FILES = 4096  # a connection each


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Simulated:
    """One worker, as the coordinator hears it; an elastic job takes it as it comes."""

    def __init__(self, number: int, workers: int, beats: asyncio.Event) -> None:
        self._beats = beats
        self._number = number
        job = spec_pb2.Job(name="many", consistency="asp", num_workers=workers, min_workers=1)
        self._join = pb.Join(protocol=PROTOCOL, job=job, worker=number, host="h", pid=1, lease_s=LEASE_S)
        self._heard = 0
        self.sent = 0

    async def live(self, address: str, joining: asyncio.Semaphore, joined: asyncio.Queue[int]) -> None:
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=CLIENT))
            await joining.acquire()
            async for reply in CoordinatorStub(channel).Member(self._says()):
                self._heard = max(self._heard, reply.number)
                if reply.HasField("joined"):
                    joining.release()
                    joined.put_nowait(self._number)

    async def _says(self) -> AsyncIterator[pb.MemberRequest]:
        yield pb.MemberRequest(join=self._join)
        await self._beats.wait()
        await asyncio.sleep(self._number % 997 / 997 * HEARTBEAT_S)  # theirs do not come all at once
        while True:
            at_s = time.monotonic()
            progress = pb.Progress(
                step=self.sent, samples=32 * self.sent, metrics={"loss": 1.0 / (1 + self.sent)}
            )
            yield pb.MemberRequest(heartbeat=pb.Heartbeat(heard=self._heard, progress=progress))
            self.sent += 1
            await asyncio.sleep(max(at_s + HEARTBEAT_S - time.monotonic(), 0.0))


async def measure(address: str, pid: int, workers: int, seconds: float) -> dict[str, float]:
    beats, joined, joining = asyncio.Event(), asyncio.Queue[int](), asyncio.Semaphore(JOINING)
    all_of_them = [Simulated(number, workers, beats) for number in range(workers)]
    async with asyncio.TaskGroup() as group:
        lives = [group.create_task(one.live(address, joining, joined)) for one in all_of_them]
        for _ in all_of_them:
            await joined.get()
        idle = await share(pid, seconds / 4)
        beats.set()
        await asyncio.sleep(2 * HEARTBEAT_S)
        before = sum(one.sent for one in all_of_them)
        beating = await share(pid, seconds)
        sent = sum(one.sent for one in all_of_them) - before
        for task in lives:
            task.cancel()
    return {"idle": idle, "share": beating, "heartbeats_per_s": sent / seconds}


async def share(pid: int, seconds: float) -> float:
    """Of one core, that a process takes."""
    began_s, used_s = time.monotonic(), cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - used_s) / (time.monotonic() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(num_servers=1, on_line=lambda _name, _line: None))
        (address,), (server,) = cluster.addresses, cluster.servers
        figures = asyncio.run(measure(address, server.pid, options.workers, options.seconds))
    print(json.dumps({"workers": options.workers, **figures}))


if __name__ == "__main__":
    main()
