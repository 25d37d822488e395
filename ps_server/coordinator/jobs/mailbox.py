"""The messages of the coordinator to one member, kept until it has heard them: streams may break in between.

Both ends number what must not be lost. A new stream begins with the number of what has come, and gets the
rest again. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeAlias

from ps_wire.errors import StrangerRefused
from ps_wire.frames.messages import refused_to_proto
from ps_wire.v1 import coordinator_pb2 as pb

Stream: TypeAlias = "asyncio.Queue[pb.MemberReply | None]"

LAST_WORDS = ("left", "refused")
MAX_UNHEARD = 8192  # replies; a worker says with each heartbeat what it has heard
_DEAF = pb.MemberReply(
    refused=refused_to_proto(
        StrangerRefused("this worker has not said for a long time which messages it has heard")
    )
)


class Mailbox:
    """The numbered messages to one member that it has not acknowledged.

    Attributes:
        session: what a member proves with that a new stream is its own.
        taken: number of the last request that was taken.
    """

    def __init__(self, *, session: bytes | None = None, number: int = 0, taken: int = 0) -> None:
        """An empty one; of a member that another coordinator knew, with what that one had."""
        self.session = secrets.token_bytes(16) if session is None else session
        self.taken = taken
        self._number = number
        self._kept: deque[pb.MemberReply] = deque()
        self._stream: Stream | None = None
        self._deaf = False  # it has not said for too long what it has heard: nothing more is kept for it

    def dump(self) -> dict[str, Any]:
        """All of it but the stream, for JSON."""
        return {
            "session": self.session.hex(),
            "number": self._number,
            "taken": self.taken,
            "kept": [reply.SerializeToString().hex() for reply in self._kept],
        }

    @classmethod
    def load(cls, facts: Mapping[str, Any]) -> Mailbox:
        """Makes the mailbox that was dumped."""
        session = bytes.fromhex(facts["session"])
        mailbox = cls(session=session, number=facts["number"], taken=facts["taken"])
        mailbox._kept.extend(pb.MemberReply.FromString(bytes.fromhex(reply)) for reply in facts["kept"])
        return mailbox

    @property
    def over(self) -> bool:
        """Whether the last word has been said, and no stream is there to bring it."""
        said = any(reply.WhichOneof("kind") in LAST_WORDS for reply in self._kept)  # others may follow it
        return self._stream is None and said

    def put(self, reply: pb.MemberReply) -> None:
        """Says something, now or on the next stream.

        One that never says what it has heard is refused, and nothing more is kept for it.
        """
        if self._deaf:
            return
        if len(self._kept) >= MAX_UNHEARD:
            self._deaf, reply = True, _DEAF
            self._kept.clear()
        self._number += 1
        numbered = pb.MemberReply(number=self._number)
        numbered.MergeFrom(reply)
        self._kept.append(numbered)
        if self._stream is not None:
            self._stream.put_nowait(numbered)

    def ask(self, reply: pb.MemberReply) -> None:
        """Says something that nobody needs to hear later."""
        if self._stream is not None and self._stream.qsize() < MAX_UNHEARD:
            self._stream.put_nowait(reply)

    def heard(self, number: int) -> None:
        """The member has taken all up to this number."""
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def receive(self, request: pb.MemberRequest) -> bool:
        """Whether a request is new, and from now on it is not. One without a number always is."""
        if request.number == 0:
            return True
        new = request.number == self.taken + 1
        self.taken += new
        return new

    def attach(self) -> Stream:
        """A stream of the member: what comes out of it is what is kept, and then what is said. One at a time.

        None ends it: another one has taken its place.
        """
        if self._stream is not None:
            self._stream.put_nowait(None)
        self._stream = asyncio.Queue()
        for reply in self._kept:
            self._stream.put_nowait(reply)
        return self._stream

    def end_stream(self) -> None:
        """The stream ends; what was said is kept for another one."""
        if self._stream is not None:
            self._stream.put_nowait(None)

    def detach(self, stream: Stream) -> None:
        """A stream has ended."""
        if self._stream is stream:
            self._stream = None
