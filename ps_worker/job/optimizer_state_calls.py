"""The optimizer state that lives on the shards, read and set by this worker.

Calls beside the data connections, one shard after the other. Both can be repeated, so they are made again
when a connection breaks: a dump is only read, a load sets the same again. It must not know modules or hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ps_wire.errors import StartLimitExceeded
from ps_wire.spec.plan import Plan
from ps_wire.v1 import shard_pb2 as pb
from ps_wire.v1.shard_pb2_calls import ShardCalls
from ps_worker.job.job_seat import Seat
from ps_worker.model.optimizer_state import Gathering, Scattering
from ps_worker.process.retry import PAUSE_S, Retry
from ps_worker.settings import Settings

STATE_LIMIT_S = 600.0  # of one call, which may carry gigabytes; a peer that is gone ends it after seconds


class OptimizerStateCalls:
    """Reads and sets of the state of whole tables. Everything waits; for the user's thread."""

    def __init__(
        self,
        settings: Settings,
        membership: Callable[[], Seat],
        *,
        calls_of: Callable[[int], ShardCalls],
        say: Callable[[str], None],
    ) -> None:
        """Takes a way to reach each shard's service.

        Args:
            settings: of the worker.
            membership: the live one.
            calls_of: calls to the shard of that number.
            say: writes to the worker's log.
        """
        self._settings = settings
        self._membership = membership
        self._calls_of = calls_of
        self._say = say
        self._said_differs = False

    def dump(self, table: int, plan: Plan) -> list[dict[str, torch.Tensor]]:
        """See `JobLink.dump_state`."""
        gathering = Gathering(plan)
        request = pb.DumpRequest(key=self._key(table))

        def call(stub: ShardCalls) -> None:
            for message in stub.Dump(request, timeout=STATE_LIMIT_S):
                gathering.receive(message)

        for shard in range(plan.num_shards):
            self._call(shard, call)
        if gathering.differs and not self._said_differs:
            self._said_differs = True
            self._say("the optimizer's state was read while steps were applied: the largest `step` counts")
        return gathering.states()

    def load(self, table: int, plan: Plan, states: Sequence[Mapping[str, Any]]) -> None:
        """See `JobLink.load_state`."""
        scattering = Scattering(plan, states)
        key = self._key(table)
        for shard in range(plan.num_shards):

            def call(stub: ShardCalls, shard: int = shard) -> None:
                stub.LoadState(scattering.messages(shard, key), timeout=STATE_LIMIT_S)

            self._call(shard, call)

    def share(self, table: int, plan: Plan, number: int, states: Sequence[Mapping[str, Any]]) -> None:
        """See `JobLink.share_state`."""
        membership = self._membership()
        if membership.joined.resumed and not membership.again:
            self._say("load_state_dict() of a worker that joins a job sets nothing: the job has its state")
            return
        if membership.joined.worker == 0:
            self.load(table, plan, states)
            membership.calls.put_state(_name(table), _count(number))
            return
        limit_s = self._settings.start_limit_s
        if not membership.calls.wait_state(_name(table), _count(number), limit_s):
            raise StartLimitExceeded(
                f"worker 0 has not called load_state_dict within {limit_s:g} s (PS_START_LIMIT): after wrap, "
                "all workers of a job call it, and worker 0's state is used",
                waiting_for="worker 0 to call load_state_dict",
            )

    # -- inside ----------------------------------------------------------------------------------------

    def _key(self, table: int) -> pb.TableKey:
        joined = self._membership().joined
        return pb.TableKey(
            job=self._settings.job, worker=joined.worker, incarnation=joined.incarnation, table=table
        )

    def _call(self, shard: int, call: Callable[[ShardCalls], None]) -> None:
        retry = Retry(self._settings.retry_limit_s, pauses_s=(PAUSE_S,))
        retry.call(lambda: call(self._calls_of(shard)), again=lambda refused: refused.retryable)


def _name(table: int) -> str:
    """Under this name the coordinator keeps how often worker 0 has set a table's optimizer state."""
    return f"optimizer/{table}"


def _count(number: int) -> bytes:
    return number.to_bytes(8, "big")  # so that the order of bytes is that of numbers
