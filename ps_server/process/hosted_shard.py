"""A server of one shard inside the process of a rank, for the ranks of its group alone; on loopback.

It is the server of `ps-server`, on an event loop in a thread of its own. The process's settings stay as they
are: torch's threads, the allocator, signals, logging.

Invariant: `close` starts no thread, so that a worker can still leave while Python shuts down.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

from ps_server.coordinator.snapshots.durability import Durability
from ps_server.coordinator.snapshots.policy import policy_of, state_dir_in
from ps_server.log import logger
from ps_server.process.own_loop import AtOnce, end_tasks
from ps_server.process.server import Server, ServerOptions
from ps_wire.access.access import Access
from ps_wire.errors import UsageError
from ps_wire.process import watched
from ps_wire.snapshot.snapshot_options import SnapshotOptions

HOST = "127.0.0.1"
NOTHING_HANDED_ON = 130  # as after Ctrl-C: ranks end one after the other, and who comes next takes a snapshot


class HostedShard:
    """A shard that serves from when it is made until `close`.

    Attributes:
        address: HOST:PORT of its control plane.
    """

    def __init__(
        self, shard: int, num_shards: int, coordinator: str | None, access: Access, snapshots: SnapshotOptions
    ) -> None:
        """Starts it, and waits until it takes calls.

        Args:
            shard: its number.
            num_shards: of all ranks together.
            coordinator: the address of shard 0; None: it is shard 0.
            access: certificates and a token, as for `ps-server`.
            snapshots: where and when they are taken; the same on all ranks.

        Raises:
            Unavailable: it cannot listen on loopback.
            UsageError: snapshots make no sense.
        """
        folder = None
        if snapshots.place is not None:
            folder = state_dir_in(snapshots.place, shard)
            if folder is None:
                raise UsageError(
                    f"--snapshot-dir {snapshots.place}: without servers (--servers none) it is a local folder"
                )
        policy = policy_of(snapshots.every, snapshots.keep)
        self._loop = asyncio.new_event_loop()
        self._executor = ThreadPoolExecutor(thread_name_prefix="ps-io")
        self._loop.set_default_executor(self._executor)
        self._stopped: asyncio.Future[int] = self._loop.create_future()
        self._serving: Future[str] = Future()
        self._server = Server(
            ServerOptions(
                shard=shard,
                num_shards=num_shards,
                host=HOST,
                port=0,
                coordinator=coordinator,
                advertise=HOST,
                memory_limit_bytes=None,
                access=access,
                snapshot_dir=snapshots.place,
                snapshots=policy,
                state_dir=folder,
                durability=Durability.NONE if folder is None else Durability.SNAPSHOT,
            )
        )
        self._thread = watched.thread("ps-local", self._run, log=logger)
        self._thread.start()
        self.address = self._serving.result()

    def close(self) -> None:
        """Ends it; its thread has ended then."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join()

    def _end(self) -> None:
        self._loop.set_default_executor(AtOnce())
        self._executor.shutdown(wait=False)
        if not self._stopped.done():
            self._stopped.set_result(NOTHING_HANDED_ON)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._server.serve(self._stopped, self._serving.set_result))
            self._loop.run_until_complete(end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except Exception as error:
            if self._serving.done():
                raise
            self._serving.set_exception(error)
        finally:
            self._loop.close()
