"""Messages and tensors between the ranks of a group: through the leader, or from each to each.

Messages go over `RankLines`, where the script's thread itself waits, until the `Abort` wakes it. Tensors go
over gloo, and nothing ends a call of gloo that waits for a dead peer: such calls run one after the other on
the thread `ps-group`, and the script's thread waits for that thread, or for the `Abort`, whichever is first.
Before each exchange ranks say what they are about to do, and who hears it compares.

A message is JSON with, perhaps, bytes behind it; nothing is pickled. One thread at a time calls it: that of
the script, or of what is beside it. It must not know what is said.

`Abort.changed` guards the outcome of the call that is under way.
"""

from __future__ import annotations

import json
import logging
import queue
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import torch

from ps_wire.errors import GroupBroken, PsError, facts_to_json, from_wire
from ps_wire.process import trace, watched
from ps_wire.process.ranks import Ranks
from ps_wire.text import one_line, parse_json
from ps_worker.group.abort import Abort
from ps_worker.group.lines import LOOK_S, Gone, RankLines
from ps_worker.process.waiting import waits

logger = logging.getLogger("ps_worker")

MAX_HEADER_BYTES = 64 << 20  # of JSON: a list of all versions of a table is in it
MAX_BLOB_BYTES = 8 << 30
CLOSE_LIMIT_S = 2.0  # a call whose connections were cut is over at once
NEVER_SENT = 6  # a tag under which nothing comes
TAG = 7  # tensors of two ranks over one channel are in order, so that one tag does
SIZES = struct.Struct("<?qq")  # of a message: whether it is heard later than what is said since, header, blob

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
        late: others may hear it after what was said since.
        number: of what this rank has said to be heard late.
    """

    mine: Said
    late: bool
    number: int = 0


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
        lines: RankLines,
        abort: Abort,
        *,
        hosts: tuple[str, ...],
        on_broken: Callable[[str], str | None],
        look: Callable[[], object] = lambda: None,
        tag: int = TAG,
    ) -> None:
        """Starts the thread.

        Args:
            ranks: which one this is.
            wires: to the others, for tensors.
            lines: to the others, for messages; its own from now on.
            abort: that ends all waits.
            hosts: by rank, for people.
            on_broken: told why the group is broken, as this rank sees it; gives what another rank has said.
            look: called now and then while this rank waits; may set `abort`.
            tag: of its tensors, which share their wires with those of other channels.
        """
        self._look = look
        self._tag = tag
        self.ranks = ranks
        self._wires = wires
        self._lines = lines
        self._abort = abort
        self._hosts = hosts
        self._on_broken = on_broken
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], _Outcome] | None] = queue.SimpleQueue()
        self._others = range(1, ranks.size)
        # What was heard before it was waited for, by rank, and whether it is late.
        self._kept: defaultdict[tuple[int, bool], deque[Said]] = defaultdict(deque)
        # Of what this rank has said to be heard late: what it has not heard of others yet, in order, and what
        # it has, by number, before it was waited for.
        self._late: deque[Saying] = deque()
        self._late_heard: dict[int, list[Said]] = {}
        self._late_said = 0
        # Where this rank's script stood, and not all others have been heard; the thread that stands there.
        self._places: deque[Said] = deque()
        self._script: int | None = None
        self._reading: set[int] = set()  # ranks of whose next message a part may be here
        abort.when_set(lambda _: lines.wake())
        self._thread = watched.thread("ps-group", self._work, log=logger, failed=self._failed)
        self._thread.start()

    def close(self) -> None:
        """No call comes any more; waits, for a while, for one that is under way.

        A thread that comes back from C++ while the interpreter ends is ended by it there and then, which C++
        takes for a bug: the process is aborted ("terminate called without an active exception").
        """
        self._calls.put(None)
        self._lines.close()
        self._thread.join(CLOSE_LIMIT_S)

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
        self._converse({0: Said({**(fields or {}), "what": what}, blob)}, ())

    def hear_from(self, rank: int, what: str) -> Said:
        """Waits for what one rank announces to the leader; see `gather` for errors."""
        (said,) = self._converse({}, [rank])
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
        self._leave_places()
        mine = Said({**(fields or {}), "what": what})
        return self._hear_all(mine, dict.fromkeys(self._all_others, mine), late=False)

    def say(self, what: str, fields: Fields | None = None, *, late: bool = True) -> Saying:
        """Every rank says something to every other, and waits for nobody: all of them hear it later.

        What is said so is heard in the order in which it was said. What the sockets do not hold leaves when
        this rank waits next. A rank may have left by then, and hears nothing any more; who waits for it
        finds that.

        Args:
            what: was done, the same on all ranks, for people.
            fields: that go along, as JSON has them.
            late: whatever else ranks exchange meanwhile; else each hears it before that.
        """
        self._abort.check()
        mine = Said({**(fields or {}), "what": what})
        with self._whole():
            for rank in self._all_others:
                with suppress(Gone):
                    for part in _written(mine, late=late):
                        self._lines.queue(rank, part)
        if not late:
            return Saying(mine, late)
        self._late_said += 1
        self._late.append(Saying(mine, late, self._late_said))
        return self._late[-1]

    def stand(self, what: str) -> None:
        """This rank's script is there, and may wait for others elsewhere; waits for none here.

        All compare it, in order: with what others have said by then while it waits for them, wherever that
        is, and with all of them in the next exchange.

        Args:
            what: it does, the same on all ranks, for people.

        Raises:
            GroupBroken: a rank does something else, or has gone.
        """
        self._script = threading.get_ident()
        self._places.append(self.say(what, late=False).mine)

    def compare_places(self) -> None:
        """Compares with `stand` what the scripts of others have said by now; waits for none.

        Other threads than the one that stands there may call it, and then it does nothing.

        Raises:
            GroupBroken: another one does something else.
        """
        if not self._places or self._script != threading.get_ident():
            return
        me, heard = self.ranks.rank, {rank: self._kept[rank, False] for rank in self._all_others}
        with self._whole():
            for rank in heard:
                with suppress(Gone):  # it may have left in order; who waits for it finds that
                    self._here(rank, len(self._places))
        for rank, theirs in heard.items():
            for mine, said in zip(self._places, theirs, strict=False):
                if me == 0:
                    self._compare(str(mine.fields.get("what")), rank, said)
                elif rank == 0:
                    self._compare(str(said.fields.get("what")), me, mine)
        passed = self._places, *heard.values()
        for _ in range(min(map(len, passed))):
            for words in passed:
                words.popleft()

    def all_have_said(self) -> bool:
        """Whether what all ranks say next, and not late, is here, so that `hear_all` waits for none of them.

        Raises:
            GroupBroken: a rank has gone.
        """
        self._abort.check()
        with self._whole():
            return all(self._here(rank, 1) for rank in self._all_others)

    def hear_all(self, saying: Saying) -> list[Said]:
        """Waits until all ranks have said theirs; see `share`.

        What is late is waited for by whom it concerns, of two tables in any order: what all have said before
        it is heard first, and kept.
        """
        if not saying.late:
            self._leave_places()
            return self._hear_all(saying.mine, {}, late=False)
        while saying.number not in self._late_heard:
            first = self._late.popleft()
            self._late_heard[first.number] = self._hear_all(first.mine, {}, late=True)
        return self._late_heard.pop(saying.number)

    @property
    def _all_others(self) -> list[int]:
        return [rank for rank in range(self.ranks.size) if rank != self.ranks.rank]

    def _hear_all(self, mine: Said, told: Mapping[int, Said], *, late: bool) -> list[Said]:
        """Each rank is heard by itself: who does something else is found."""
        first = mine

        def check(rank: int, said: Said) -> None:
            nonlocal first
            if rank == 0:
                first = said
                self._compare(str(first.fields.get("what")), self.ranks.rank, mine)
            else:
                self._compare(str(first.fields.get("what")), rank, said)

        said = self._exchange(told, self._all_others, check, late=late)
        said.insert(self.ranks.rank, mine)
        return said

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
        self._converse(dict.fromkeys(self._others, Said({**fields, "what": what}, blob)), ())

    def hear(self, what: str) -> Said:
        """Waits for what the leader says; see `gather`.

        Raises:
            GroupBroken: it does something else, or has gone.
            PsError: what it says is that this call has failed for all.
        """
        (said,) = self._converse({}, [0])
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
            self.run(
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
        self.run(partial(self._wait, [(rank, work)]))

    # -- the end ---------------------------------------------------------------------------------------

    def broken(self, reason: str) -> GroupBroken:
        """The group ends, on all ranks; the error to raise."""
        return self._abort.set(self._on_broken(reason) or reason)

    def check(self) -> None:
        """Raises GroupBroken where the group has ended."""
        self._abort.check()

    # -- inside ----------------------------------------------------------------------------------------

    def _converse(self, told: Mapping[int, Said], sources: Sequence[int]) -> list[Said]:
        """See `_exchange`; first all are heard where this rank's script stood."""
        self._leave_places()
        return self._exchange(told, sources)

    def _leave_places(self) -> None:
        """Waits for the others where this rank's script stood; who looks meanwhile compares nothing."""
        places, self._places = self._places, deque()
        for place in places:
            self._hear_all(place, {}, late=False)

    @waits("the other ranks of its group")
    def _exchange(
        self,
        told: Mapping[int, Said],
        sources: Sequence[int],
        check: Callable[[int, Said], None] = lambda _rank, _said: None,
        *,
        late: bool = False,
    ) -> list[Said]:
        """All of it leaves at once, and each rank is heard by itself: who does something else is found.

        Args:
            told: what is said, by rank; the same to several is written once.
            sources: the ranks that are heard, one message of each, in this order.
            check: sees each message as it comes.
            late: what was said with `say` is heard.
        """
        self._abort.check()
        with self._whole(), trace.span("wait for ranks"):
            written = {id(said): _written(said) for said in told.values()}
            for rank, said in told.items():
                for part in written[id(said)]:
                    self._lines.queue(rank, part)
            heard = []
            for rank in sources:
                heard.append(self._hear(rank, late=late))
                check(rank, heard[-1])
            while self._lines.sending:
                self._pause(None)
        return heard

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Messages leave and come whole, or the group ends."""
        try:
            yield
        except PsError:
            raise
        except Gone as error:
            logger.debug("rank %d: %s", self.ranks.rank, error)
            raise self._has_gone(error.rank) from None
        except BaseException:  # Ctrl-C, or SIGTERM for the second time: half a message may have gone, or come
            self._interrupted()
            raise

    def _hear(self, source: int, *, late: bool) -> Said:
        """The next message of a rank that is late, or that is not; others are kept for who hears them."""
        kept = self._kept[source, late]
        while not kept:
            said, is_late = self._receive(source)
            self._kept[source, is_late].append(said)
        return kept.popleft()

    def _here(self, source: int, count: int) -> deque[Said]:
        """Gives the messages of a rank that are here now, and not late: it looks for so many."""
        kept = self._kept[source, False]
        while len(kept) < count and source not in self._reading:
            begun = bytearray(SIZES.size)
            taken = self._lines.receive(source, memoryview(begun))
            if not taken:
                break
            said, late = self._receive(source, begun[:taken])
            self._kept[source, late].append(said)
        return kept

    def _receive(self, source: int, begun: bytes | bytearray = b"") -> tuple[Said, bool]:
        """The next message of a rank, of which the first bytes may be here.

        While it waits for the rest, who looks for what others have said reads nothing in between.
        """
        self._reading.add(source)
        try:
            rest = self._exactly(source, SIZES.size - len(begun))
            late, header_bytes, blob_bytes = SIZES.unpack(bytes(begun) + rest)
            if not 0 < header_bytes <= MAX_HEADER_BYTES or not 0 <= blob_bytes <= MAX_BLOB_BYTES:
                raise self.broken(
                    f"rank {source} on {self._hosts[source]} says something of impossible length"
                )
            header, blob = (bytes(self._exactly(source, count)) for count in (header_bytes, blob_bytes))
        finally:
            self._reading.discard(source)
        try:
            fields = parse_json(header)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise self.broken(f"rank {source} on {self._hosts[source]} says what is no message")
        return Said(fields, blob), late

    def _exactly(self, source: int, count: int) -> bytearray:
        data = bytearray(count)
        rest = memoryview(data)
        while rest:
            if taken := self._lines.receive(source, rest):
                rest = rest[taken:]
            else:
                self._pause(source)
        return data

    def _look_around(self) -> None:
        self._look()
        self.compare_places()

    def _pause(self, source: int | None) -> None:
        """Waits until something of a rank is there, or has left; raises where the group has ended."""
        self._look_around()
        self._lines.wait(source, LOOK_S)
        self._abort.check()

    @waits("the other ranks of its group")
    def run(self, call: Callable[[], Result]) -> Result:
        """Makes a call that waits for other ranks on the thread, and waits for it or for the group's end.

        Args:
            call: may hang where a rank has gone; of its errors those of this package come back, and any other
                ends the group.

        Raises:
            GroupBroken: the group has ended.
        """
        outcome, changed = _Outcome(), self._abort.changed
        self._abort.check()
        self._calls.put((call, outcome))
        over = False
        with self._whole(), trace.span("wait for ranks"):  # of one that is interrupted the call goes on
            while not over:
                self._look_around()
                with changed:
                    over = changed.wait_for(lambda: outcome.done or self._abort.error is not None, LOOK_S)
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
            except Gone as error:
                logger.debug("rank %d: %s", self.ranks.rank, error)
                outcome.error = self._has_gone(error.rank)
            del todo, call  # and the tensors in it: the next may be long in coming
            with self._abort.changed:
                outcome.done = True
                self._abort.changed.notify_all()
            del outcome

    def _interrupted(self) -> None:
        self.broken(f"rank {self.ranks.rank} was interrupted while it waited for the others")

    def _has_gone(self, rank: int) -> GroupBroken:
        return self.broken(f"rank {rank} on {self._hosts[rank]} has gone")

    def _failed(self, bug: Exception) -> None:
        self.broken(f"rank {self.ranks.rank}: {type(bug).__name__}: {bug}")

    def _move(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """All at once: no rank waits for one that waits for it."""
        sending = self._begin(self._wires.send, sends)
        self._wait(self._begin(self._wires.recv, receives))
        self._wait(sending)

    def _begin(
        self,
        call: Callable[[list[torch.Tensor], int, int], Any],
        parts: Sequence[tuple[int, torch.Tensor]],
    ) -> list[tuple[int, Any]]:
        begun = []
        for rank, tensor in parts:
            with _gone(rank):
                begun.append((rank, call([tensor], rank, self._tag)))
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
        raise Gone(rank, str(error)) from None


def cut(wires: Wires, ranks: Ranks) -> None:
    """Ends all calls over wires, on all threads: gloo closes its connections where one runs out of time."""
    for rank in range(ranks.size):
        if rank != ranks.rank:
            with suppress(RuntimeError):
                wires.recv([torch.empty(1)], rank, NEVER_SENT).wait(timedelta(milliseconds=1))


def _written(said: Said, *, late: bool = False) -> list[bytes]:
    """A message as it travels: two sizes and the header, and the blob."""
    header = json.dumps(said.fields).encode()
    return [SIZES.pack(late, len(header), len(said.blob)) + header, said.blob]


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that every transport takes: bytes."""
    return tensor.view(torch.uint8)
