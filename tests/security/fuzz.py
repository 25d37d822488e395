"""Frames and control messages that are nearly right, by the hundred thousand, against a real server.

    python -m tests.security.fuzz --seed 1 --count 1000000 --minutes 60

They come from strangers and from who holds another job's token, in portions, each of which is drawn from
the seed and its number: half are control messages, half are frames, over each carrier. A bsp job is trained
beside them, again and again. It must have the bytes that it has alone, no call may end as a bug, no
connection may be left without an end, the log has no traceback, memory is as before, and SIGTERM ends the
server.
What is found says how to run its portion again; the server's log is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ps_wire.access import token as tokens
from ps_wire.frames.carrier import Carrier
from tests.integration.processes import Process, start
from tests.integration.raw import Metadata, RawWorker
from tests.integration.servers import Servers
from tests.until import LIMIT_S, until

from . import framing
from .bystander import train
from .callers import storm
from .mutation import Mutation

SERVICE = "the-token-of-the-service"
MINE = "mine"
VICTIM = "beside"
STEPS = 10  # of the job beside
PORTION = 1000  # frames and messages: a finding is run again in seconds
PORTIONS_OF_SERVER = 30  # then another one is started: jobs that have ended count among its 1024
AT_ONCE = 128  # calls: most of the time of one that is taken, it waits for its limit
LEFT_BYTES = 64 << 20  # an allocator keeps what it had at its peak: more than this is a trace
JOB_BYTES = 96 << 10  # of a job that has ended, whose weights may still be asked for
LOG_BYTES = 1 << 20  # beside those for what is sent
LOG_BYTES_EACH = 100  # the job beside writes ten lines each time
BUGS = framing.BUGS - {"DEADLINE_EXCEEDED"}  # a call has a second: a stream that is taken lasts

Sent = Callable[[int], None]


class Beside:
    """A job that is trained again and again while others do harm, and has the same bytes each time."""

    def __init__(self, address: str, settings: dict[str, Any]) -> None:
        self._train = partial(train, address, steps=STEPS, settings=settings)
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times = 0

    @contextmanager
    def training(self) -> Iterator[None]:
        """For as long as this lasts, and to the end of the last time; raises what failed."""
        self._alone = self._train(job="alone")
        self._thread.start()
        yield
        self._over.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"job {VICTIM}-{self.times} waits for ever"
        self.check()

    def check(self) -> None:
        """Raises what failed so far."""
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                weights = self._train(job=f"{VICTIM}-{self.times}")
                assert weights == self._alone, f"job {VICTIM}-{self.times} has other bytes than it has alone"
                self.times += 1
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._failed.append(error)


class Attack:
    """What is sent to one server."""

    def __init__(self, servers: Servers, seed: int, sent: Sent) -> None:
        """Draws all from the seed; `sent` is told how many more there are."""
        self._servers = servers
        self._seed = seed
        self._sent = sent
        self.calls: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def portion(self, number: str, count: int) -> None:
        """Half control messages, half frames."""
        self._control(number, count // 2)
        self._frames(number, count - count // 2)

    def _control(self, number: str, count: int) -> None:
        of_job = tokens.metadata(tokens.of_job(SERVICE, MINE), MINE)
        # A wrong token is answered late, and none of its messages is looked at: a few are enough.
        callers = (*[of_job] * 14, (), tokens.metadata("x" * 32, VICTIM))
        mutation = Mutation(f"{self._seed}/{number}", (MINE, f"{VICTIM}-1"))
        before = 0

        def sent(so_far: int) -> None:
            nonlocal before
            self._sent(so_far - before)
            before = so_far

        address = self._servers.addresses[0]
        ended = asyncio.run(storm(address, mutation, count, callers=callers, at_once=AT_ONCE, on_sent=sent))
        bugs = {call: times for call, times in ended.items() if call[1] in BUGS}
        assert not bugs, f"calls ended as bugs: {bugs}"
        for (_, outcome), times in ended.items():
            self.calls[outcome] += times

    def _frames(self, number: str, count: int) -> None:
        over = threading.Event()
        failed: list[BaseException] = []
        answers: list[Counter[str]] = []

        def attack(carrier: Carrier) -> None:
            job = f"frames-{carrier}-{number}"
            metadata = tokens.metadata(tokens.of_job(SERVICE, job), job)
            try:
                with RawWorker(self._servers, job=job, metadata=metadata) as worker:
                    answers.append(self._speak(worker, carrier, number, count, metadata, over))
            except BaseException as error:  # noqa: BLE001 - raised below
                error.add_note(f"over {carrier}")
                failed.append(error)
                over.set()

        threads = [threading.Thread(target=attack, args=(carrier,), daemon=True) for carrier in Carrier]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            over.set()
        if failed:
            raise failed[0]
        for counted in answers:
            self.answers += counted

    def _speak(
        self,
        worker: RawWorker,
        carrier: Carrier,
        number: str,
        count: int,
        metadata: Metadata,
        over: threading.Event,
    ) -> Counter[str]:
        seed = f"{self._seed}/{number}/{carrier}"
        share = count // len(Carrier)
        answers = framing.storm(
            worker, carrier, seed, share, metadata=metadata, on_sent=self._sent, over=over
        )
        bugs = {name: times for name, times in answers.items() if name in framing.BUGS}
        assert not bugs, f"frames were answered as bugs: {bugs}"
        return answers


@dataclass(slots=True)
class Found:
    """What became of all that was sent, to all servers."""

    servers: int = 0
    total: int = 0
    jobs: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)


def batched(numbers: Iterable[int], size: int) -> Iterator[Iterator[int]]:
    """One after the other, `size` at a time; each is to be used up before the next."""
    rest = iter(numbers)
    for first in rest:
        yield chain((first,), islice(rest, size - 1))


def memory_bytes(server: Process) -> int:
    """That a process has now."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def check_log(text: str, sent: int) -> None:
    """It is short for what was sent, has no traceback, and nothing in it speaks to a terminal."""
    assert "Traceback" not in text, text[max(text.index("Traceback") - 1000, 0) :][:8000]
    assert len(text) < LOG_BYTES + LOG_BYTES_EACH * sent, (
        f"after {sent} messages, the log has {len(text)} bytes"
    )
    strange = [line for line in text.split("\n") if not line.isprintable()]
    assert not strange, strange[:3]


def check_memory(server: Process, before_bytes: int, jobs: int, say: Callable[[str], None]) -> None:
    """It is as before, but for jobs that have ended; what is under way may end first."""
    most = before_bytes + LEFT_BYTES + JOB_BYTES * jobs
    until(lambda: memory_bytes(server) < most, f"memory is as before, {before_bytes >> 20} MiB")
    say(f"memory: {before_bytes >> 20} MiB before, {memory_bytes(server) >> 20} MiB after {jobs} jobs")


def fuzz(
    folder: Path,
    seed: int,
    portions: Iterable[int],
    *,
    size: int = PORTION,
    until_s: float = math.inf,
    sent: Sent = lambda _: None,
    say: Callable[[str], None] = print,
) -> None:
    """Runs portions one after the other; raises what it finds.

    Args:
        folder: for the token, snapshots and the log of the last server.
        seed: of all that is drawn.
        portions: their numbers; each is drawn from the seed and its own.
        size: of a portion.
        until_s: of the monotonic clock; no portion begins later.
        sent: told how many more there are.
        say: takes a line for people.
    """
    (folder / "token").write_text(SERVICE)
    found = Found()
    for batch in batched(portions, PORTIONS_OF_SERVER):
        if time.monotonic() > until_s:
            break
        _one_server(folder, seed, batch, size=size, until_s=until_s, sent=sent, say=say, found=found)
    say(f"seed {seed}: {found.total} control messages and frames")
    say(f"servers that stood them, one after the other: {found.servers}")
    say(f"calls ended: {_listed(found.calls)}")
    say(f"frames were answered: {_listed(found.answers)}")
    say(f"jobs beside were trained {found.jobs} times, with the bytes that they have alone")


def _one_server(
    folder: Path,
    seed: int,
    portions: Iterable[int],
    *,
    size: int,
    until_s: float,
    sent: Sent,
    say: Callable[[str], None],
    found: Found,
) -> None:
    """As many portions as one server is for."""
    place = (
        "--token-file",
        str(folder / "token"),
        "--snapshot-dir",
        str(folder / f"snapshots-{found.servers}"),
    )
    servers = Servers(start, 1, "--memory-limit", "256M", *place)
    (server,) = servers.processes
    number: int | str = "warm"
    total = 0
    try:
        beside = Beside(servers.addresses[0], {"token_file": folder / "token"})
        with beside.training():
            Attack(servers, seed, lambda _: None).portion("warm", size)
            before_bytes = memory_bytes(server)
            attack = Attack(servers, seed, sent)
            for number in portions:
                if time.monotonic() > until_s:
                    break
                attack.portion(str(number), size)
                total += size
                beside.check()
                check_log(server.text, total)
        found.servers += 1
        found.total += total
        found.jobs += beside.times
        found.calls += attack.calls
        found.answers += attack.answers
        check_memory(server, before_bytes, beside.times + total // size * len(Carrier), say)
        codes = servers.close()
        assert codes == [0], server.end
        check_log(server.text, total)
        say(f"log: {len(server.text)} bytes")
    except Exception as error:
        error.add_note(f"portion {number}")
        raise
    finally:
        server.kill()
        (folder / "server.log").write_text(server.text)


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{times} {name}" for name, times in counted.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.security.fuzz", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000_000, help="frames and messages, at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="no portion begins later")
    parser.add_argument("--only", type=int, metavar="PORTION", help="this portion alone")
    given = parser.parse_args()
    logging.getLogger("ps_worker").addHandler(logging.NullHandler())  # the bar is the terminal's
    console = Console()
    numbers: Iterable[int] = range(-(-given.count // PORTION))
    total = given.count
    if given.only is not None:
        numbers, total = [given.only], PORTION
    until_s = time.monotonic() + 60 * given.minutes
    columns = TextColumn("frames and messages"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    last: list[int] = [-1]

    def counted() -> Iterator[int]:
        for last[0] in numbers:
            yield last[0]

    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total)
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        try:
            sent = partial(bar.advance, task)
            fuzz(folder, given.seed, counted(), until_s=until_s, sent=sent, say=say)
        except KeyboardInterrupt:
            say(f"ended by Ctrl-C in portion {last[0]}; nothing was found before it")
            code = 130
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            traceback.print_exception(error)
            say(f"found in portion {last[0]}, or by what was sent before it: {error}")
            say(f"run it again: python -m tests.security.fuzz --seed {given.seed} --only {last[0]}")
            say(f"the server's log: {folder / 'server.log'}")
            code = 1
        else:
            code = 0
    if code != 1:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # workers of the job beside may wait for a server that has been ended
