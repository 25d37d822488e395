"""Chaos over real processes: faults drawn from a seed, and at the end the ledger holds.

    python -m tests.faults.chaos --seed 1 --minutes 2

A round is a job. In half of the time, where this machine permits it, each worker has a network of its own,
which is cut and slow. Every third round has a run of `tests.faults.resume` behind it. What
failed says its seed, its schedule, where the logs are, and how it is run again: `--seed 1 --only 7`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.integration.processes import Process, Start, Zygote

from . import links, resume
from .chaos_round import SNAPSHOTS, Chaos
from .controller import Faults
from .links import Disk, Link
from .proxy import Proxy
from .resume_checks import Ended
from .resume_plan import draw as draw_resumed
from .schedule import Event, Round, draw
from .world import World

STEPS = 400
SLOW = "20mbit"
EVERY_STEPS = 10  # between snapshots, where servers are killed
RESUME = "resume"  # the kind of fault that leaves out runs of `tests.faults.resume`
EVERY = 3  # rounds, of which the last has such a run behind it
INSIDE = "FAULTS_INSIDE"  # of the environment: this process is in a namespace that was made for it


def run_round(start: Start, folder: Path, plan: Round, *, networks: bool) -> list[Event]:
    """One round; returns what happened. On an error the logs are in `folder`."""
    folder.mkdir()
    started: list[Process] = []

    def spawn(*command: str, **environment: str) -> Process:
        started.append(start(*command, environment=environment))
        return started[-1]

    with contextlib.ExitStack() as stack:
        faults = stack.enter_context(Faults(folder))
        made = [stack.enter_context(Link(worker + 1)) for worker in range(plan.num_workers * networks)]
        if made:
            made[0].slow(SLOW)
        options = ("--host", "0.0.0.0", "--insecure") if networks else ()
        disk = None
        if plan.ends_servers:
            place = folder / SNAPSHOTS
            disk = stack.enter_context(Disk(place)) if networks else None
            options += ("--snapshot-dir", str(place), "--snapshot-every", f"{EVERY_STEPS}steps")
        try:
            between: list[Proxy] = []

            def through(address: str) -> str:
                between.append(stack.enter_context(Proxy(address)))
                return between[0].address

            world = World(spawn, faults, folder, plan.consistency, options, through)
            chaos = Chaos(world, faults, plan, made, between[0], disk, folder)
            chaos.run()
            world.close()
            for process in started:
                assert "Traceback" not in process.text, f"{process.name}\n{process.text}"
        finally:
            for number, process in enumerate(started):
                with contextlib.suppress(AssertionError):  # waited for in vain: it goes with the zygote
                    process.kill()
                name = "-".join(process.name.split()[:1])
                (folder / f"{number:02}-{name}.log").write_text(f"{process.name}\n{process.text}\n")
    return chaos.happened


def run(
    start: Start,
    folder: Path,
    *,
    seed: int,
    numbers: Iterable[int],
    until_s: float,
    steps: int,
    without: Sequence[str] = (),
) -> list[list[Event]]:
    """Rounds until it is past `until_s` of the monotonic clock; returns what happened in each."""
    inside = INSIDE in os.environ
    rounds: list[list[Event]] = []
    expected: dict[tuple[str, int], Ended] = {}
    for number in numbers:
        if time.monotonic() > until_s:
            break
        plan = draw(seed, number, steps=steps, links=inside)
        plan = replace(plan, events=tuple(it for it in plan.events if it.act.value not in without))
        place = folder / f"round-{number}"
        try:
            rounds.append(run_round(start, place, plan, networks=inside))
        except BaseException:
            left_out = "".join(f" --without {kind}" for kind in without)
            again = f"--seed {seed} --only {number} --steps {steps}" + " --links" * inside + left_out
            say(
                f"chaos with seed {seed} failed in round {number} ({again}); logs and ledger: {place}\n{plan}"
            )
            raise
        say(f"round {number}: {len(rounds[-1])} of {len(plan.events)} events; {str(plan).splitlines()[0]}")
        behind = None if RESUME in without else resumed_run(number)
        if behind is not None:
            run_resumed(start, folder, seed=seed, number=behind, expected=expected, namespaces=inside)
    return rounds


def resumed_run(number: int) -> int | None:
    """The run of `tests.faults.resume` that comes behind a round, where one does."""
    return number // EVERY if number % EVERY == EVERY - 1 else None


def run_resumed(
    start: Start,
    folder: Path,
    *,
    seed: int,
    number: int,
    expected: dict[tuple[str, int], Ended],
    namespaces: bool,
) -> None:
    """One run of `tests.faults.resume`; `expected` keeps what runs end with that nobody disturbs, by kind."""
    plan = draw_resumed(seed, number, namespaces=namespaces)
    kind = plan.consistency, plan.num_workers
    place = folder / f"resume-{number}"
    try:
        if kind not in expected:
            expected[kind] = resume.undisturbed(start, folder / f"whole-{number}", *kind)
        resume.run_one(start, place, plan, expected[kind])
    except BaseException:
        again = f"python -m tests.faults.resume --seed {seed} --only {number}" + " --plain" * (not namespaces)
        say(f"a run that is resumed failed ({again}); logs: {place}\n{plan}")
        raise
    say(f"resumed {number}: {plan}")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Half of the time plain rounds, half of it rounds with networks, which a namespace is made for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--only", type=int, help="this round alone")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--links", action="store_true", help="rounds with networks alone")
    parser.add_argument("--without", action="append", default=[], help="a kind of fault that is left out")
    given = parser.parse_args()
    both = not given.links and given.only is None
    if given.links and INSIDE not in os.environ:
        raise SystemExit(with_links(sys.argv[1:]))
    if given.links:
        links.ip("link", "set", "lo", "up")
    minutes = given.minutes / 2 if both else given.minutes
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    zygote = Zygote()
    numbers = itertools.count() if given.only is None else [given.only]
    until_s = time.monotonic() + 60 * minutes
    try:
        rounds = run(
            zygote.start,
            folder,
            seed=given.seed,
            numbers=numbers,
            until_s=until_s,
            steps=given.steps,
            without=given.without,
        )
    finally:
        zygote.close()
    shutil.rmtree(folder)
    say(f"{len(rounds)} rounds{' with networks of their own' * given.links} held")
    counts = Counter(f"{event.act} {event.process.split()[0]}" for events in rounds for event in events)
    say("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    if both:
        words = f"--seed {given.seed} --steps {given.steps} --minutes {minutes} --links"
        raise SystemExit(with_links(words.split()))


def with_links(words: list[str]) -> int:
    """Does it in a namespace, where that is permitted; the exit code."""
    if reason := links.refusal():
        say(f"no rounds with networks: {reason}")
        return 0
    command = [*links.UNSHARE, sys.executable, "-m", "tests.faults.chaos", *words]
    return subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode


if __name__ == "__main__":
    main()
