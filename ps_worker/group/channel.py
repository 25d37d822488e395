"""Messages and tensors between the ranks of a group: through the leader, or from each to each.

Calls that wait for another rank run one after the other on the thread `ps-group`; the script's thread waits
for that thread, or for the `Abort`, whichever comes first: nothing ends a call of gloo that waits for a
dead peer. Before each exchange ranks say what they are about to do, and who hears it compares.

A message is JSON with, perhaps, bytes behind it; nothing is pickled. The script's thread alone calls it. It
must not know what is said.

`Abort.changed` guards the outcome of the call that is under way.
"""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
LATE_TAG = 8  # of what is heard later than what has been said since

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


@dataclass(frozen=True, slots=True)
class Saying:
    """Words of this rank that others may not have heard yet; see `Channel.say`.

    Attributes:
        mine: it.
        tag: under which the others say theirs.
        sending: to each of them.
    """

    mine: Said
    tag: int
    sending: Sequence[tuple[int, Any]]


class _Gone(RuntimeError):
    """A call to a rank has failed: the rank has gone."""

    def __init__(self, rank: int, error: RuntimeError) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank = rank


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
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], _Outcome] | None] = queue.SimpleQueue()
        self._others = range(1, ranks.size)
        self._heard: Saying | None = None  # of what was said and heard late, the last
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
        self._run(partial(self._send, 0, {**(fields or {}), "what": what}, blob))

    def hear_from(self, rank: int, what: str) -> Said:
        """Waits for what one rank announces to the leader; see `gather` for errors."""
        said: Said = self._run(partial(self._receive, rank))
        self._compare(what, rank, said)
        return said

    def share(self, what: str, fields: Fields | None = None) -> list[Said]:
        """Every rank says something to every other.

        Args:
            what: is about to happen, the same on all ranks, for people.
            fields: that go along, as JSON has them.

        Returns:
            What each rank has said, by rank; this one, too.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        return self._run(partial(self._share, what, fields))

    def say(self, what: str, fields: Fields | None = None) -> Saying:
        """Every rank says something to every other, and waits for nobody: all of them `hear` it later.

        What is said so is heard in the order in which it was said, whatever else ranks exchange meanwhile.
        """
        self._abort.check()
        try:
            return self._say(what, fields, LATE_TAG)
        except _Gone as error:
            raise self._has_gone(error.rank) from None

    def hear_all(self, saying: Saying) -> list[Said]:
        """Waits until all ranks have said theirs, and have heard what was said before it; see `share`."""
        before, self._heard = self._heard, saying
        return self._run(lambda: self._hear(saying, () if before is None else before.sending))

    def _compare(self, first: str, rank: int, said: Said) -> None:
        """Ends the group where a rank is not at what rank 0 is at, `first`."""
        second = str(said.fields.get("what"))
        if second != first:
            raise self.broken(
                f"rank 0 is at {one_line(first)}, and rank {rank} on {self._hosts[rank]} at "
                f"{one_line(second)}; all ranks of a group make the same calls"
            )

    def tell(self, what: str, fields: Fields, blob: bytes = b"") -> None:
        """The leader says something to all others; see `gather`."""
        for rank in self._others:
            self._run(partial(self._send, rank, {**fields, "what": what}, blob))

    def hear(self, what: str) -> Said:
        """Waits for what the leader says; see `gather`.

        Raises:
            GroupBroken: it does something else, or has gone.
            PsError: what it says is that this call has failed for all.
        """
        said: Said = self._run(partial(self._receive, 0))
        self._compare(str(said.fields.get("what")), self.ranks.rank, Said({"what": what}))
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
            return self.hear(what)
        try:
            answer = ask(heard)
        except GroupBroken:
            raise
        except PsError as error:
            self.tell(what, {"error": [type(error).__name__, error.message, facts_to_json(error)]})
            raise
        self.tell(what, answer.fields, answer.blob)
        return answer

    # -- tensors ---------------------------------------------------------------------------------------

    def swap(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """Sends tensors to ranks and receives others in place, all at once; waits for all.

        Args:
            sends: to whom, and a contiguous tensor of the CPU; the other rank knows its shape and dtype.
            receives: from whom, and where to; in the order in which that rank sends them.

        Raises:
            GroupBroken: a rank has gone.
        """
        if sends or receives:
            self._run(
                partial(
                    self._move,
                    [(rank, _sendable(it)) for rank, it in sends if it.numel()],
                    [(rank, _sendable(it)) for rank, it in receives if it.numel()],
                )
            )

    def begin(
        self,
        call: Callable[[list[torch.Tensor], int, int], Any],
        tensors: list[torch.Tensor],
        rank: int,
        tag: int,
    ) -> Any:
        """Begins a transfer of somebody else's, over wires of its own; waits for nobody. See `end`.

        Raises:
            GroupBroken: the rank has gone, or the group has ended.
        """
        self._abort.check()
        try:
            return call(tensors, rank, tag)
        except RuntimeError as error:
            logger.debug("rank %d: %s", self.ranks.rank, error)
            raise self._has_gone(rank) from None

    def end(self, rank: int, work: Any) -> None:
        """Waits until a transfer to or from a rank is over. Raises what `begin` raises."""
        self._run(partial(self._wait, [(rank, work)]))

    # -- the end ---------------------------------------------------------------------------------------

    def broken(self, reason: str) -> GroupBroken:
        """The group ends, on all ranks; the error to raise."""
        return self._abort.set(self._on_broken(reason) or reason)

    def check(self) -> None:
        """Raises GroupBroken where the group has ended."""
        self._abort.check()

    # -- inside ----------------------------------------------------------------------------------------

    @waits("the other ranks of its group")
    def _run(self, call: Callable[[], Result]) -> Result:
        """Makes a call to other ranks on the thread, and waits for it or for the end of the group."""
        outcome, changed = _Outcome(), self._abort.changed
        self._abort.check()
        self._calls.put((call, outcome))
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
            call, outcome = todo
            try:
                outcome.result = call()
            except PsError as error:
                outcome.error = error
            except _Gone as error:
                logger.debug("rank %d: %s", self.ranks.rank, error)
                outcome.error = self._has_gone(error.rank)
            with self._abort.changed:
                outcome.done = True
                self._abort.changed.notify_all()

    def _has_gone(self, rank: int) -> GroupBroken:
        return self.broken(f"rank {rank} on {self._hosts[rank]} has gone")

    def _failed(self, bug: Exception) -> None:
        self.broken(f"rank {self.ranks.rank}: {type(bug).__name__}: {bug}")

    def _send(self, to: int, fields: Fields, blob: bytes) -> None:
        self._wait(self._begin(self._wires.send, [(to, part) for part in _written(Said(dict(fields), blob))]))

    @property
    def _all_others(self) -> list[int]:
        return [rank for rank in range(self.ranks.size) if rank != self.ranks.rank]

    def _say(self, what: str, fields: Fields | None, tag: int) -> Saying:
        """All of it leaves at once."""
        mine = Said({**(fields or {}), "what": what})
        parts = [(rank, part) for rank in self._all_others for part in _written(mine)]
        return Saying(mine, tag, self._begin(self._wires.send, parts, tag))

    def _share(self, what: str, fields: Fields | None) -> list[Said]:
        saying = self._say(what, fields, TAG)
        return self._hear(saying, saying.sending)

    def _hear(self, saying: Saying, sending: Sequence[tuple[int, Any]]) -> list[Said]:
        """Each rank is heard by itself: who does something else is found; `sending` is over then."""
        said = [saying.mine] * self.ranks.size
        for rank in self._all_others:
            said[rank] = self._receive(rank, saying.tag)
            self._compare(str(said[0].fields.get("what")), rank, said[rank])
            if rank == 0:
                self._compare(str(said[0].fields.get("what")), self.ranks.rank, saying.mine)
        self._wait(sending)
        return said

    def _receive(self, source: int, tag: int = TAG) -> Said:
        sizes = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._wait(self._begin(self._wires.recv, [(source, sizes)], tag))
        header_bytes, blob_bytes = sizes.tolist()
        if not 0 < header_bytes <= MAX_HEADER_BYTES or not 0 <= blob_bytes <= MAX_BLOB_BYTES:
            raise self.broken(f"rank {source} on {self._hosts[source]} says something of impossible length")
        parts = [torch.empty(it, dtype=torch.uint8, device="cpu") for it in (header_bytes, blob_bytes)]
        self._wait(self._begin(self._wires.recv, [(source, part) for part in parts if part.numel()], tag))
        header, blob = (bytes(bytes_of(part)) if part.numel() else b"" for part in parts)
        try:
            fields = json.loads(header)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise self.broken(f"rank {source} on {self._hosts[source]} says what is no message")
        return Said(fields, blob)

    def _move(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """All at once: no rank waits for one that waits for it."""
        sending = self._begin(self._wires.send, sends)
        self._wait(self._begin(self._wires.recv, receives))
        self._wait(sending)

    @staticmethod
    def _begin(
        call: Callable[[list[torch.Tensor], int, int], Any],
        parts: Sequence[tuple[int, torch.Tensor]],
        tag: int = TAG,
    ) -> list[tuple[int, Any]]:
        begun = []
        for rank, tensor in parts:
            with _gone(rank):
                begun.append((rank, call([tensor], rank, tag)))
        return begun

    @staticmethod
    def _wait(begun: Sequence[tuple[int, Any]]) -> None:
        for rank, work in begun:
            with _gone(rank):
                work.wait()


@contextmanager
def _gone(rank: int) -> Iterator[None]:
    """A RuntimeError of gloo's means that the other end has gone."""
    try:
        yield
    except RuntimeError as error:
        raise _Gone(rank, error) from None


def _written(said: Said) -> list[torch.Tensor]:
    """A message as it travels: two sizes, the header, and the blob, if there is one."""
    header = json.dumps(said.fields).encode()
    sizes = torch.tensor([len(header), len(said.blob)], dtype=torch.int64, device="cpu")
    parts = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in (header, said.blob) if part]
    return [sizes, *parts]


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that every transport takes: bytes."""
    return tensor.view(torch.uint8)
