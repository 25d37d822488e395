"""Messages and tensors between the ranks of a group: from each to the leader, and from the leader to all.

Calls that wait for another rank run one after the other on the thread `ps-group`; the script's thread waits
for that thread, or for the `Abort`, whichever comes first: nothing ends a call of gloo that waits for a
dead peer. Before each exchange the ranks above 0 say what they are about to do, and the leader compares.

A message is JSON with, perhaps, bytes behind it; nothing is pickled. The script's thread alone calls it. It
must not know what is said.

`Abort.changed` guards the outcome of the call that is under way.
"""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import torch

from ps_wire.errors import GroupBroken, PsError, facts_to_json, from_wire
from ps_wire.frames.buffer import bytes_of
from ps_wire.process import trace, watched
from ps_wire.process.ranks import Ranks
from ps_wire.text import one_line
from ps_worker.group.abort import Abort
from ps_worker.process.waiting import waits

logger = logging.getLogger("ps_worker")

MAX_HEADER_BYTES = 64 << 20  # of JSON: a list of all versions of a table is in it
MAX_BLOB_BYTES = 8 << 30
LOOK_S = 0.5  # between two looks at the group, while this rank waits
TAG = 7  # messages of two ranks are in order, so that one tag does

Result = TypeVar("Result")
Fields = Mapping[str, Any]


class Wires(Protocol):
    """Point-to-point transport between ranks, as torch's process groups have it; may raise RuntimeError."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        """Begins to send; what it returns has `wait()`."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        """Begins to receive; what it returns has `wait()`."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a rank.

    Attributes:
        fields: of it.
        blob: the bytes behind them.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""


class _Outcome:
    def __init__(self) -> None:
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class Channel:
    """The channel of one rank to its group."""

    def __init__(
        self,
        ranks: Ranks,
        wires: Wires,
        abort: Abort,
        *,
        hosts: tuple[str, ...],
        on_broken: Callable[[str], str | None],
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Starts the thread.

        Args:
            ranks: which one this is.
            wires: to the others.
            abort: that ends all waits.
            hosts: by rank, for people.
            on_broken: told why the group is broken, as this rank sees it; gives what another rank has said.
            look: called now and then while this rank waits; may set `abort`.
        """
        self._look = look
        self.ranks = ranks
        self._wires = wires
        self._abort = abort
        self._hosts = hosts
        self._on_broken = on_broken
        self._calls: queue.SimpleQueue[tuple[int, Callable[[], Any], _Outcome] | None] = queue.SimpleQueue()
        self._others = range(1, ranks.size)
        watched.thread("ps-group", self._work, log=logger, failed=self._failed).start()

    def close(self) -> None:
        """No call comes any more."""
        self._calls.put(None)

    # -- exchanges -------------------------------------------------------------------------------------

    def gather(self, what: str, fields: Fields | None = None, blob: bytes = b"") -> list[Said]:
        """Every rank says what it is about to do.

        Args:
            what: is about to happen, the same on all ranks, for people.
            fields: that go along, as JSON has them.
            blob: that goes along.

        Returns:
            On the leader what ranks 1, 2, ... have said; nothing on the others.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        if self.ranks.leads:
            return [self.hear_from(rank, what) for rank in self._others]
        self.announce(what, fields, blob)
        return []

    def announce(self, what: str, fields: Fields | None = None, blob: bytes = b"") -> None:
        """A rank above 0 says what it is about to do; see `gather`."""
        self._run(0, partial(self._send, 0, {**(fields or {}), "what": what}, blob))

    def hear_from(self, rank: int, what: str) -> Said:
        """Waits for what one rank announces to the leader; see `gather` for errors."""
        said = self._run(rank, partial(self._receive, rank))
        if said.fields.get("what") != what:
            raise self.broken(
                f"rank 0 is at {what}, and rank {rank} on {self._hosts[rank]} at "
                f"{one_line(str(said.fields.get('what')))}; all ranks of a group make the same calls"
            )
        return said

    def tell(self, fields: Fields, blob: bytes = b"") -> None:
        """The leader says something to all others."""
        for rank in self._others:
            self._run(rank, partial(self._send, rank, fields, blob))

    def hear(self) -> Said:
        """Waits for what the leader says.

        Raises:
            PsError: what it says is that this call has failed for all.
        """
        said = self._run(0, partial(self._receive, 0))
        failed = said.fields.get("error")
        if isinstance(failed, list) and len(failed) == 3:
            raise from_wire(*map(str, failed))
        return said

    def relay(self, what: str, ask: Callable[[list[Said]], Said], given: Said | None = None) -> Said:
        """The leader's answer, on all ranks: `ask` is called on the leader alone.

        Args:
            what: is asked, for people.
            ask: gets what the other ranks have brought.
            given: that this rank brings.

        Raises:
            PsError: `ask` has raised it; on all ranks.
            GroupBroken: a rank does something else, or has gone.
        """
        mine = given or Said()
        heard = self.gather(what, mine.fields, mine.blob)
        if not self.ranks.leads:
            return self.hear()
        try:
            answer = ask(heard)
        except GroupBroken:
            raise
        except PsError as error:
            self.tell({"error": [type(error).__name__, error.message, facts_to_json(error)]})
            raise
        self.tell(answer.fields, answer.blob)
        return answer

    # -- tensors ---------------------------------------------------------------------------------------

    def send_tensor(self, tensor: torch.Tensor, to: int) -> None:
        """Sends a contiguous tensor of the CPU; the other rank knows its shape and dtype."""
        if tensor.numel():
            self._run(to, lambda: self._wires.send([_sendable(tensor)], to, TAG).wait())

    def receive_tensor(self, tensor: torch.Tensor, source: int) -> None:
        """Receives one in place."""
        if tensor.numel():
            self._run(source, lambda: self._wires.recv([_sendable(tensor)], source, TAG).wait())

    # -- the end ---------------------------------------------------------------------------------------

    def broken(self, reason: str) -> GroupBroken:
        """The group ends, on all ranks; the error to raise."""
        return self._abort.set(self._on_broken(reason) or reason)

    def check(self) -> None:
        """Raises GroupBroken where the group has ended."""
        self._abort.check()

    # -- inside ----------------------------------------------------------------------------------------

    @waits("the other ranks of its group")
    def _run(self, peer: int, call: Callable[[], Result]) -> Result:
        """Makes a call to a rank on the thread, and waits for it or for the end of the group."""
        outcome, changed = _Outcome(), self._abort.changed
        self._abort.check()
        self._calls.put((peer, call, outcome))
        try:
            over = False
            with trace.span("wait for ranks"):
                while not over:
                    self._look()
                    with changed:
                        over = changed.wait_for(lambda: outcome.done or self._abort.error is not None, LOOK_S)
        except BaseException:  # Ctrl-C, or SIGTERM for the second time: the call goes on without its script
            self.broken(f"rank {self.ranks.rank} was interrupted while it waited for the others")
            raise
        if not outcome.done:
            self._abort.check()
        if outcome.error is not None:
            raise outcome.error
        return cast("Result", outcome.result)

    def _work(self) -> None:
        while (todo := self._calls.get()) is not None:
            peer, call, outcome = todo
            try:
                outcome.result = call()
            except PsError as error:
                outcome.error = error
            except RuntimeError as error:  # of gloo: a rank has gone
                logger.debug("rank %d: %s", self.ranks.rank, error)
                outcome.error = self.broken(f"rank {peer} on {self._hosts[peer]} has gone")
            with self._abort.changed:
                outcome.done = True
                self._abort.changed.notify_all()

    def _failed(self, bug: Exception) -> None:
        self.broken(f"rank {self.ranks.rank}: {type(bug).__name__}: {bug}")

    def _send(self, to: int, fields: Fields, blob: bytes) -> None:
        header = json.dumps(fields).encode()
        sizes = torch.tensor([len(header), len(blob)], dtype=torch.int64, device="cpu")
        self._wires.send([sizes], to, TAG).wait()
        for part in (header, blob):
            if part:
                self._wires.send([torch.frombuffer(bytearray(part), dtype=torch.uint8)], to, TAG).wait()

    def _receive(self, source: int) -> Said:
        sizes = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._wires.recv([sizes], source, TAG).wait()
        header_bytes, blob_bytes = sizes.tolist()
        if not 0 < header_bytes <= MAX_HEADER_BYTES or not 0 <= blob_bytes <= MAX_BLOB_BYTES:
            raise self.broken(f"rank {source} on {self._hosts[source]} says something of impossible length")
        header, blob = (self._receive_bytes(source, size) for size in (header_bytes, blob_bytes))
        try:
            fields = json.loads(header)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise self.broken(f"rank {source} on {self._hosts[source]} says what is no message")
        return Said(fields, blob)

    def _receive_bytes(self, source: int, size: int) -> bytes:
        if not size:
            return b""
        buffer = torch.empty(size, dtype=torch.uint8, device="cpu")
        self._wires.recv([buffer], source, TAG).wait()
        return bytes(bytes_of(buffer))


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that every transport takes: bytes."""
    return tensor.view(torch.uint8)
