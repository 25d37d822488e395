"""A shard's gRPC service beside its data stream: who it is, tokens for connections, figures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import grpc.aio

from ps_server.lanes import Lanes
from ps_server.rpc import auth as gatekeeper
from ps_server.rpc import reply_size
from ps_server.shard.job import ShardJob
from ps_server.shard.partition.totals import Totals
from ps_server.shard.shard import Shard
from ps_server.shard.state import optimizer_state
from ps_server.shard.state.snapshots import Arriving
from ps_server.shard.table.table import ShardTable
from ps_wire.errors import PayloadMismatch, ServerNotReady
from ps_wire.frames.frame import FIRST_READER, PROTOCOL
from ps_wire.snapshot.manifest import MANIFEST
from ps_wire.v1 import shard_pb2 as pb
from ps_wire.v1 import shard_pb2_grpc as rpc

MAX_TENSORS = 1 << 19  # of a message with optimizer state: eight for each parameter that a table may have


class ShardService(rpc.ShardServicer):
    """The gRPC methods of a shard: each decodes, calls and encodes.

    Attributes:
        ready: whether this shard serves; see `serve`.
        carriers: that it offers for data, best first.
    """

    def __init__(self, shard: Shard, *, carriers: Sequence[pb.Carrier], pool: Executor | None = None) -> None:
        """Takes the shard, and the threads for what jobs ask for (default: its own)."""
        self.ready = False
        self.carriers = tuple(carriers)
        self._shard = shard
        self._beside = Lanes(pool)  # one thing of a job at a time
        # Manifests are read one after the other, of each job one at most waits.
        self._manifests = ThreadPoolExecutor(1, thread_name_prefix="ps-manifest")

    def serve(self, ready: bool) -> None:
        """From now on this shard serves, or does not."""
        self.ready = ready

    async def Describe(
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DescribeReply:
        """Which shard this is."""
        return pb.DescribeReply(
            protocol=PROTOCOL,
            shard=self._shard.index,
            num_shards=self._shard.num_shards,
            ready=self.ready,
        )

    async def Open(self, request: pb.OpenRequest, context: grpc.aio.ServicerContext) -> pb.OpenReply:
        """A token for one data connection of a worker that has joined."""
        gatekeeper.check_job(request.job)
        if not self.ready:
            raise ServerNotReady(f"shard {self._shard.index} is not registered, or stops")
        token = self._shard.make_token(request.job, request.worker, request.incarnation, request.rank)
        return pb.OpenReply(carriers=self.carriers, token=token, generation=self._shard.generation)

    async def Dump(
        self, request: pb.DumpRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.PartitionState]:
        """The optimizer's state of a table, for a worker that has joined; copied on another thread."""
        table, job = self._table(request.key, writes=False), request.key.job
        for partition in table.partitions():
            for message in await self._beside.run(job, optimizer_state.dump, table, partition):
                yield message

    async def LoadState(
        self, request_iterator: AsyncIterator[pb.PartitionState], context: grpc.aio.ServicerContext
    ) -> pb.LoadStateReply:
        """A member sets the optimizer's state of partitions."""
        loading: optimizer_state.Loading | None = None
        job = ""
        async for message in request_iterator:
            if loading is None:
                loading, job = optimizer_state.Loading(self._table(message.key, writes=True)), message.key.job
            if len(message.tensors) > MAX_TENSORS:  # each takes two bytes as it comes, and eighty here
                raise PayloadMismatch(f"a message has {len(message.tensors)} tensors, at most {MAX_TENSORS}")
            await self._beside.run(job, loading.receive, message)
        if loading is not None:  # else a shard without partitions of the table
            loading.end()
        return pb.LoadStateReply()

    async def PutSnapshot(
        self, request_iterator: AsyncIterator[pb.SnapshotChunk], context: grpc.aio.ServicerContext
    ) -> pb.SnapshotFiles:
        """One file of a snapshot that is brought from elsewhere."""
        chunks = aiter(request_iterator)
        file = (await anext(chunks, pb.SnapshotChunk())).file
        gatekeeper.check_job(file.job)
        with self._shard.snapshots.place(file.job):
            arriving = await self._beside.run(file.job, self._shard.snapshots.arrive, file)
            try:
                async for chunk in chunks:
                    await self._beside.run(file.job, arriving.receive, chunk.data)
                end = self._read_manifest if file.name == MANIFEST else Arriving.end
                await self._beside.run(file.job, end, arriving)
            except BaseException:
                arriving.abandon()
                raise
        return pb.SnapshotFiles()

    async def LookSnapshot(
        self, request: pb.SnapshotFile, context: grpc.aio.ServicerContext
    ) -> pb.SnapshotFiles:
        """Answers what of a snapshot is here."""
        gatekeeper.check_job(request.job)
        names = await self._beside.run(request.job, self._shard.snapshots.files, request)
        return pb.SnapshotFiles(names=names)

    def _read_manifest(self, arriving: Arriving) -> None:
        self._manifests.submit(arriving.end).result()

    def _table(self, key: pb.TableKey, *, writes: bool) -> ShardTable:
        gatekeeper.check_job(key.job)
        return self._shard.table_of(key.job, key.table, key.worker, key.incarnation, writes=writes)

    async def Tables(self, request: pb.TablesRequest, context: grpc.aio.ServicerContext) -> pb.TablesReply:
        """Figures of every table; gathered on another thread, since cells have locks."""
        return await self._beside.run(gatekeeper.bound_to() or "", self.figures)

    def figures(self) -> pb.TablesReply:
        """The figures of this shard now, for status."""
        jobs = self._shard.jobs()
        traffic = self._shard.traffic.figures().values()
        tables = [
            _table_figures(job, table)
            for job in jobs
            if gatekeeper.sees(job.name)
            for table in tuple(job.tables.values())
        ]
        reply_size.cut(tables)
        return pb.TablesReply(
            shard=self._shard.index,
            memory_bytes=sum(job.memory_bytes for job in jobs if gatekeeper.sees(job.name)),
            memory_limit_bytes=self._shard.memory_limit_bytes or 0,
            refused_frames=self._shard.refused_frames,
            connections=sum(it.connections for it in traffic),
            queued_bytes=sum(it.queued_bytes for it in traffic),
            tables=tables,
            events=[
                pb.JobEvents(job=job.name, counts=job.events) for job in jobs if gatekeeper.sees(job.name)
            ],
        )


def _table_figures(job: ShardJob, table: ShardTable) -> pb.TableStatus:
    totals = table.totals()
    return pb.TableStatus(
        job=job.name,
        table=table.spec.number,
        partitions=totals.partitions,
        min_version=totals.oldest,
        max_version=totals.newest,
        bytes_in=totals.meters.bytes_in,
        bytes_out=totals.meters.bytes_out,
        mixed_steps=totals.mixed_steps,
        hyper_mismatches=totals.hyper_mismatches,
        tau=totals.tau,
        weight_bytes=totals.weight_bytes,
        optimizer_bytes=totals.optimizer_bytes,
        workers=[
            _worker_figures(job, totals, worker)
            for worker in sorted(job.known | job.fenced)
            if worker < FIRST_READER
        ],
    )


def _worker_figures(job: ShardJob, totals: Totals, worker: int) -> pb.TableWorker:
    ledger = totals.ledger(worker)
    ranks = job.sessions.of(worker)
    return pb.TableWorker(
        worker=worker,
        min_clock=totals.lowest.get(worker, 0),
        max_clock=totals.highest.get(worker, 0),
        max_gap=ledger.max_gap,
        received=ledger.received,
        applied=ledger.applied,
        dropped=ledger.dropped,
        abstained=ledger.abstained,
        duplicates=ledger.duplicates,
        refused=ledger.refused,
        gate_wait_s=ledger.gate_wait_s,
        member=worker in job.members,
        carrier=ranks[min(ranks)].carrier if ranks else "",
        missed=ledger.missed,
        ranks=[
            pb.RankConnection(
                rank=rank,
                carrier=it.carrier,
                received_bytes=it.received_bytes,
                sent_bytes=it.sent_bytes,
            )
            for rank, it in sorted(ranks.items())
        ],
    )
