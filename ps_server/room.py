"""One job's room on the coordinator: its members' queues, and the task that carries its actions out in order.

The decisions are `membership.Job`'s. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from ps_server.log import logger
from ps_server.member import Action, Member, ToMember, ToShards
from ps_server.membership import Job
from ps_server.orders import Shards
from ps_wire.errors import PsError
from ps_wire.v1 import coordinator_pb2 as pb


class Room:
    """See the module's docstring."""

    def __init__(self, job: Job, shards: Shards, on_empty: Callable[[Room], None]) -> None:
        self.job = job
        self.queues: dict[tuple[int, int], asyncio.Queue[pb.MemberReply]] = {}
        self.progress: dict[int, pb.Progress] = {}
        self.heard_s: dict[int, float] = {}
        self._shards = shards
        self._on_empty = on_empty
        self._actions: deque[Action] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing is on its way to members or shards."""
        return self._task is None and not self._actions

    def admit(self, member: Member, actions: Sequence[Action]) -> asyncio.Queue[pb.MemberReply]:
        """Makes the queue of a member that has just joined, then does what follows."""
        queue: asyncio.Queue[pb.MemberReply] = asyncio.Queue()
        self.queues[member.worker, member.incarnation] = queue
        self.progress.pop(member.worker, None)
        self.heard_s[member.worker] = time.monotonic()
        self.do(actions)
        return queue

    def heard(self, member: Member, progress: pb.Progress) -> None:
        """A member has said how far it is."""
        self.progress[member.worker] = progress
        self.heard_s[member.worker] = time.monotonic()

    def do(self, actions: Sequence[Action]) -> None:
        """Queues actions; one task carries them out, one change at a time."""
        self._actions.extend(actions)
        if self._task is None and self._actions:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._actions:
                action = self._actions.popleft()
                if isinstance(action, ToMember):
                    self._deliver(action)
                else:
                    await self._order(action)
        finally:
            self._task = None
        self._check_empty()

    def close(self, member: Member) -> None:
        """A member's stream has ended: its queue goes."""
        self.queues.pop((member.worker, member.incarnation), None)
        self._check_empty()

    def _check_empty(self) -> None:
        if self.idle and self.job.forgotten and not self.queues:
            self._on_empty(self)

    def _deliver(self, action: ToMember) -> None:
        kind = action.reply.WhichOneof("kind")
        logger.debug("job %s worker %d: %s", self.job.name, action.worker, kind)
        queue = self.queues.get((action.worker, action.incarnation))
        if queue is not None:
            queue.put_nowait(action.reply)

    async def _order(self, action: ToShards) -> None:
        job = self.job
        try:
            clocks = await self._shards.order(action.order)
        except PsError as error:
            logger.warning("job %s: order %s: %s", job.name, action.order.WhichOneof("kind"), error)
            self._actions.extend(job.failed(action.order, error))
        else:
            self._actions.extend(job.done(action.order, clocks))
