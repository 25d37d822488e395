"""Asks servers how they are, over gRPC. Blocking; every call has a deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps_lab.status.status import (
    Job,
    RankConnections,
    Shard,
    Snapshot,
    Status,
    Table,
    TableWorker,
    Worker,
    merge_tables,
)
from ps_wire.access.access import OPEN, Access
from ps_wire.access.channel import dial
from ps_wire.access.status import error_of
from ps_wire.access.tls_diagnosis import diagnose
from ps_wire.errors import ServerNotReady, ServerUnreachable, ShardMismatch
from ps_wire.frames.messages import epoch_use_from_proto
from ps_wire.v1 import coordinator_pb2 as coordinator
from ps_wire.v1 import shard_pb2 as shard
from ps_wire.v1.coordinator_pb2_grpc import CoordinatorStub
from ps_wire.v1.shard_pb2_grpc import ShardStub

ANSWER_LIMIT_S = 30.0
"""Of who asks once: a server that is gone refuses at once, and one on a busy machine is late."""

LOOK_LIMIT_S = 3.0
"""Of who looks again and again."""

HEALTH_LIMIT_S = 2.0


def ask(servers: tuple[str, ...], access: Access = OPEN, *, timeout_s: float = ANSWER_LIMIT_S) -> Status:
    """All that these servers say of themselves and their jobs; see `Observer.look`.

    Args:
        servers: all addresses, in shard order.
        access: certificates and token, where the servers want any.
        timeout_s: for all answers.
    """
    with Observer(servers, access, timeout_s=timeout_s) as observer:
        return observer.look()


class Observer:
    """A context manager that asks servers again and again: channels stay open, and all are asked at once."""

    def __init__(
        self, servers: tuple[str, ...], access: Access = OPEN, *, timeout_s: float = ANSWER_LIMIT_S
    ) -> None:
        """Asks nobody yet; arguments as for `ask`."""
        self._servers = servers
        self._access = access
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def look(self) -> Status:
        """All that the servers say now.

        Raises:
            TlsRefused, TokenRefused: a server does not let us in.
            ServerUnreachable: an address does not answer, or what answers is no server of this project.
            ShardMismatch: the list has the wrong length or order.
        """
        try:
            return self._look()
        except BaseException:
            self._close()  # the next look shows the certificates of then, and waits for no back-off
            raise

    def _look(self) -> Status:
        request, coordinator_request = shard.TablesRequest(), coordinator.StatusRequest()
        said = {"timeout": self._timeout_s, "metadata": self._access.metadata}
        asked = [ShardStub(self._channel(it)).Tables.future(request, **said) for it in self._servers]
        first = self._servers[0]
        cluster_asked = CoordinatorStub(self._channel(first)).Status.future(coordinator_request, **said)
        try:
            replies = [
                self._answer(address, future) for address, future in zip(self._servers, asked, strict=True)
            ]
            for position, reply in enumerate(replies):
                _check_place(reply, position, self._servers[position])
            cluster: coordinator.StatusReply = self._answer(first, cluster_asked)
        finally:
            for future in (*asked, cluster_asked):
                future.cancel()
        if cluster.num_shards != len(self._servers):
            raise ShardMismatch(
                f"{first} is one of {cluster.num_shards} servers; the list has {len(self._servers)}",
                expected=cluster.num_shards,
                got=len(self._servers),
            )
        shards = zip(replies, self._servers, strict=True)
        return Status(
            shards=tuple(_shard(reply, address) for reply, address in shards),
            jobs=tuple(_job(job, replies) for job in cluster.jobs),
        )

    def _channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            self._channels[address] = dial(address, self._access)
        return self._channels[address]

    def _answer(self, address: str, future: Any) -> Any:
        with _named(address, self._access):
            return future.result()


def is_serving(address: str, access: Access = OPEN, *, timeout_s: float = HEALTH_LIMIT_S) -> bool:
    """Whether the server on that address says that it is ready."""
    with dial(address, access) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=""), timeout=timeout_s
            )
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def check_serving(address: str, access: Access = OPEN, *, name: str = "", timeout_s: float) -> None:
    """Returns if the server on that address says that it serves.

    Args:
        address: of its control port, or of its health port, which has neither certificates nor a token.
        access: certificates, where the port wants them.
        name: of what is asked about; empty: readiness.
        timeout_s: for the answer.

    Raises:
        ServerUnreachable: nothing answers, or what answers has no such name.
        ServerNotReady: it says that it does not serve.
        TlsRefused: it does not let us in.
    """
    with _named(address, access), dial(address, access) as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        state = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        raise ServerNotReady(f"server {address} says {state}: it starts, stops, or waits for shard 0")


def _check_place(reply: shard.TablesReply, position: int, address: str) -> None:
    if reply.shard != position:
        raise ShardMismatch(
            f"{address} is shard {reply.shard}, and stands in place {position} of the list",
            expected=position,
            got=reply.shard,
            address=address,
        )


@contextmanager
def _named(address: str, access: Access) -> Iterator[None]:
    """A call that failed raises the error that a person understands."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise ServerUnreachable(
                f"what answers on {address} is no such server: {error.details()}", address=address
            ) from None
        named = error_of(error, address)
        if isinstance(named, ServerUnreachable):
            raise diagnose(address, access.tls) or named from None
        raise named from None


def _shard(reply: shard.TablesReply, address: str) -> Shard:
    return Shard(
        shard=reply.shard,
        address=address,
        memory_bytes=reply.memory_bytes,
        memory_limit_bytes=reply.memory_limit_bytes,
        refused_frames=reply.refused_frames,
        connections=reply.connections,
        queued_bytes=reply.queued_bytes,
        bytes_in=sum(table.bytes_in for table in reply.tables),
        bytes_out=sum(table.bytes_out for table in reply.tables),
        min_version=min((table.min_version for table in reply.tables if table.partitions), default=0),
        max_version=max((table.max_version for table in reply.tables), default=0),
    )


def _job(job: coordinator.JobStatus, replies: list[shard.TablesReply]) -> Job:
    parts: dict[int, list[Table]] = {}
    for reply in replies:
        for table in reply.tables:
            if table.job == job.job.name:
                parts.setdefault(table.table, []).append(_table(table))
    return Job(
        name=job.job.name,
        consistency=job.job.consistency,
        num_workers=job.job.num_workers,
        min_workers=job.job.min_workers,
        nonfinite=job.job.nonfinite,
        state=job.state,
        epoch=job.epoch,
        events=_events(job, replies, [table for part in parts.values() for table in part]),
        happened=tuple(job.happened),
        epochs=tuple(map(epoch_use_from_proto, job.epochs)),
        workers=tuple(_worker(worker) for worker in sorted(job.workers, key=lambda worker: worker.worker)),
        tables=tuple(merge_tables(parts[number]) for number in sorted(parts)),
        snapshot=_snapshot(job.snapshot) if job.HasField("snapshot") else None,
    )


def _snapshot(said: coordinator.SnapshotStatus) -> Snapshot:
    return Snapshot(
        age_s=said.age_s,
        step=said.step if said.HasField("step") else None,
        duration_s=said.duration_s,
        nbytes=said.bytes,
    )


def _events(
    job: coordinator.JobStatus, replies: list[shard.TablesReply], parts: list[Table]
) -> dict[str, int]:
    """The events of the coordinator and the shards; of pushes that were dropped, each shard's partitions."""
    counts: Counter[str] = Counter(job.events)
    for reply in replies:
        for events in reply.events:
            if events.job == job.job.name:
                counts.update(events.counts)
    counts["drop"] = sum(worker.dropped for part in parts for worker in part.workers)
    return {kind: count for kind, count in sorted(counts.items()) if count}


def _worker(worker: coordinator.WorkerStatus) -> Worker:
    return Worker(
        worker=worker.worker,
        incarnation=worker.incarnation,
        host=worker.host,
        pid=worker.pid,
        state=worker.state,
        step=worker.progress.step,
        samples=worker.progress.samples,
        waited_s=worker.progress.waited_s,
        heartbeat_age_s=worker.heartbeat_age_s,
        lease_left_s=None if worker.lease_left_s < 0 else worker.lease_left_s,
        metrics=dict(sorted(worker.progress.metrics.items())),
        waits=worker.progress.waits,
        passed_over=worker.progress.passed_over,
    )


def _table(table: shard.TableStatus) -> Table:
    return Table(
        table=table.table,
        partitions=table.partitions,
        min_version=table.min_version,
        max_version=table.max_version,
        bytes_in=table.bytes_in,
        bytes_out=table.bytes_out,
        weight_bytes=table.weight_bytes,
        optimizer_bytes=table.optimizer_bytes,
        hyper_mismatches=table.hyper_mismatches,
        mixed_steps=table.mixed_steps,
        tau_counts=dict(sorted(table.tau.items())),
        workers=tuple(_table_worker(worker) for worker in table.workers),
    )


def _table_worker(worker: shard.TableWorker) -> TableWorker:
    return TableWorker(
        worker=worker.worker,
        member=worker.member,
        min_clock=worker.min_clock,
        max_clock=worker.max_clock,
        max_gap=worker.max_gap,
        received=worker.received,
        applied=worker.applied,
        dropped=worker.dropped,
        missed=worker.missed,
        abstained=worker.abstained,
        duplicates=worker.duplicates,
        gate_wait_s=worker.gate_wait_s,
        carriers=(worker.carrier,) if worker.carrier else (),
        ranks=tuple(
            RankConnections(rank=it.rank, received_bytes=it.received_bytes, sent_bytes=it.sent_bytes)
            for it in worker.ranks
        ),
    )
