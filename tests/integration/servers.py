"""Server processes on loopback, and what they say of themselves."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps_lab.cluster.ports import free_ports
from ps_wire.access.channel import CLIENT
from ps_wire.v1 import coordinator_pb2, shard_pb2
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub
from tests.until import until

from .processes import LIMIT_S, Process

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_jobs = itertools.count()


def fresh_job() -> str:
    """A name that no other test uses."""
    return f"job-{next(_jobs)}"


def health(address: str, service: str = "") -> int:
    """What the standard health service says now."""
    with grpc.insecure_channel(address, options=CLIENT) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=LIMIT_S, wait_for_ready=True)
    status: int = reply.status
    return status


def wait_health(address: str, status: int, service: str = "") -> None:
    """Until the standard health service says so."""
    until(lambda: health(address, service) == status, f"{address} {service!r} is {status}")


class Servers:
    """Running servers of one service.

    Attributes:
        addresses: in shard order.
        processes: in shard order.
    """

    def __init__(self, start: Callable[..., Process], num_shards: int, *options: str) -> None:
        """Starts them and waits until all serve."""
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(num_shards)]
        self.processes = [
            start(
                "ps-server",
                *("--shard", f"{shard}/{num_shards}", "--port", address.rpartition(":")[2]),
                *(("--coordinator", self.addresses[0]) if shard else ()),
                *options,
            )
            for shard, address in enumerate(self.addresses)
        ]
        self._channels = [grpc.insecure_channel(address, options=CLIENT) for address in self.addresses]
        try:
            for address in self.addresses:
                wait_health(address, SERVING)
        except BaseException as error:
            for process in self.processes:
                error.add_note(f"{process.name}, as it was killed:\n{process.text}")
                process.kill()
            raise

    @property
    def option(self) -> str:
        """As `--servers` takes it."""
        return ",".join(self.addresses)

    def worker(self, job: str = "") -> tuple[str, ...]:
        """The command of a worker of a job, a fresh one where none is named; options and script follow."""
        return "ps-worker", "--servers", self.option, "--job", job or fresh_job()

    def close(self) -> list[int]:
        """Stops them all by SIGTERM; returns their exit codes."""
        for channel in self._channels:
            channel.close()
        for process in self.processes:
            process.signal(signal.SIGTERM)
        return [process.wait_end() for process in self.processes]

    def figures(self, shard: int) -> shard_pb2.TablesReply:
        """What a shard says of its tables."""
        request = shard_pb2.TablesRequest()
        reply: shard_pb2.TablesReply = ShardStub(self._channels[shard]).Tables(
            request, timeout=LIMIT_S, wait_for_ready=True
        )
        return reply

    def table(self, shard: int, job: str) -> shard_pb2.TableStatus:
        """A job's only table on a shard."""
        (table,) = [table for table in self.figures(shard).tables if table.job == job]
        return table

    def ledger(self, shard: int, job: str, worker: int) -> shard_pb2.TableWorker:
        """One worker's figures of a job's only table on a shard."""
        (ledger,) = [entry for entry in self.table(shard, job).workers if entry.worker == worker]
        return ledger

    def refused_frames(self, shard: int) -> int:
        """The counter of frames that were none, or from strangers."""
        count: int = self.figures(shard).refused_frames
        return count

    def status(self, job: str) -> coordinator_pb2.JobStatus | None:
        """What the coordinator says of a job; None if it knows none."""
        request = coordinator_pb2.StatusRequest()
        reply = CoordinatorStub(self._channels[0]).Status(request, timeout=LIMIT_S)
        return next((entry for entry in reply.jobs if entry.job.name == job), None)

    def status_of_shards(self) -> list[str]:
        """Where the coordinator knows each shard; empty where it knows none."""
        reply = CoordinatorStub(self._channels[0]).Status(coordinator_pb2.StatusRequest(), timeout=LIMIT_S)
        return list(reply.shards)

    def wait_state(self, job: str, state: str | None) -> None:
        """Until the coordinator says that a job is in that state; None: it knows it no more."""
        until(lambda: getattr(self.status(job), "state", None) == state, f"job {job} is {state}")


@contextmanager
def serving(start: Callable[..., Process], num_shards: int, *options: str) -> Iterator[Servers]:
    """Servers for a while; stopped by SIGTERM they end with 0."""
    servers = Servers(start, num_shards, *options)
    yield servers
    codes = servers.close()
    assert codes == [0] * num_shards, "\n".join(f"{it.end}:\n{it.text}" for it in servers.processes)
