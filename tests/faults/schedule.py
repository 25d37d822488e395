"""What happens in a round of chaos, drawn from a seed before it begins: a pure value that prints.

An event is bound to a point that a process reaches at a step of its own, not to a time, so a seed gives the
same faults at the same places on any machine. What the processes do in between is theirs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from ps_wire.frames.frame import Kind

from .middle import Do

CONSISTENCIES = ("bsp", "ssp:1", "asp", "bsp:backup=1")
CARRIERS = ("auto", "uds", "tcp", "grpc")
POINTS = (  # of a worker; over the grpc carrier there is no "send"
    "worker before a push is queued",
    "worker after a push is queued",
    "worker before ACK is taken",
    "worker after ACK is taken",
    "worker after weights are asked for",
    "worker before PULLED is taken",
    "worker after the wait for weights",
)
SERVER_POINTS = (
    "server before PUSH is taken",
    "server after a push is staged",
    "server after a push is applied",
    "server after a reply is made",
)
FRAMES = tuple((kind, do) for kind in (Kind.PUSH, Kind.ACK, Kind.PULL, Kind.PULLED) for do in Do)
RARELY = 0.25  # of what takes 15 s
NO_REORDER = (Kind.PULL,)  # it would overtake its pushes


class Act(StrEnum):
    """What happens to a process."""

    KILL = "kill"  # SIGKILL; another process takes its place at once
    STOP = "stop"  # SIGTERM; another process takes its place when it has ended
    PAUSE = "pause"  # SIGSTOP, and SIGCONT as soon as it has stopped
    SLEEP = "sleep"  # SIGSTOP, and SIGCONT when it was evicted
    CUT = "cut"  # a worker's network is gone until it was evicted; shard 1's way to shard 0, for some tries
    BLINK = "blink"  # it is gone and comes back
    HANG = "hang"  # SIGSTOP of a shard, and SIGCONT when a worker has noticed
    SILENCE = "silence"  # what goes to and from it vanishes until it has noticed; of shard 1, to shard 0
    FULL = "full"  # the disk of snapshots and hand-offs is full, until one has failed
    LOSS = "loss"  # of what is sent to a worker some packets are lost, until some were
    DOUBLE = "double"  # another process is started in a shard's place, and its port is in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fault: what happens to a process when it is at a point, at this step or later."""

    process: str
    point: str
    step: int
    act: Act

    def __str__(self) -> str:
        return f"{self.act} {self.process} at step {self.step}, {self.point}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFault:
    """One fault of a frame of worker 1, whose way to shard 1 leads through a host in the middle."""

    kind: Kind
    step: int
    do: Do

    def __str__(self) -> str:
        return f"{self.do} {self.kind.name} of worker 1 at step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One job from its start to its end."""

    consistency: str
    num_workers: int
    steps: int
    carriers: tuple[str, ...]
    events: tuple[Event, ...]
    frames: tuple[FrameFault, ...]
    group: int | None = None  # this worker is two ranks; their faults go by "worker N" and "worker N/1"

    @property
    def processes(self) -> list[str]:
        """Of all workers, by name."""
        ranks = [] if self.group is None else [f"worker {self.group}/1"]
        return [*(f"worker {number}" for number in range(self.num_workers)), *ranks]

    @property
    def ends_servers(self) -> bool:
        """Whether a server is killed or stopped, or their disk is full: then there have to be snapshots."""
        acts = {event.act for event in self.events if event.process.startswith("server")}
        return bool(acts & {Act.KILL, Act.STOP, Act.FULL})

    def __str__(self) -> str:
        over = ", ".join(self.carriers)
        head = f"{self.consistency}, {self.num_workers} workers over {over}, {self.steps} steps"
        head += "" if self.group is None else f", worker {self.group} is a group"
        return "\n".join([head, *(f"  {event}" for event in (*self.events, *self.frames))])


def draw(seed: int, number: int, *, steps: int, links: bool = False) -> Round:
    """Round `number` of a seed; in those of an odd number a shard is killed or stopped, or both.

    In those of an even number a worker is a group, without backup workers.

    Args:
        seed: of the run.
        number: of the round.
        steps: that workers train, at least.
        links: workers have networks of their own, which can be cut.
    """
    rng = random.Random(f"{seed}/{number}")
    num_workers = rng.choice((3, 4))
    acts = [Act.KILL, Act.STOP, Act.SLEEP, Act.PAUSE] + ([Act.CUT, Act.BLINK] if links else [])
    spread = range(steps // 10, steps - steps // 10)
    events = [
        Event(
            process=f"worker {rng.randrange(num_workers)}",
            point=rng.choice(POINTS),
            step=step,
            act=rng.choice(acts),
        )
        for step in sorted(rng.sample(spread, 6))
    ]
    # servers are apart when a worker goes or comes: that is what they talk of
    apart = rng.choice(events).step, rng.choice((Act.CUT, Act.BLINK))
    of_servers = [(1, *apart)]
    if number % 2:
        step = rng.choice(range(steps // 2, spread.stop))
        shards = rng.choice(((0,), (1,), (0, 1)))
        of_servers += [(shard, step, rng.choice((Act.KILL, Act.STOP))) for shard in shards]
    events += [
        Event(process=f"server {shard}", point=rng.choice(SERVER_POINTS), step=step, act=act)
        for shard, step, act in of_servers
    ]
    frames = [] if links else rng.sample(FRAMES, 8)
    more = random.Random(f"{seed}/{number}/more")  # of its own: what else happens stays as it was
    early = range(spread.start, steps // 2)  # before a server ends
    of_links = ((Act.SILENCE,), (Act.LOSS,)) if links else ()
    events += [
        Event(
            process=f"worker {more.randrange(num_workers)}",
            point=more.choice(POINTS),
            step=more.choice(early),
            act=more.choice(choice),
        )
        for choice in of_links
    ]
    events += [
        Event(
            process=f"server {more.randrange(2)}",
            point=more.choice(SERVER_POINTS),
            step=more.choice(early),
            act=more.choice(choice),
        )
        for choice in ((Act.HANG, Act.PAUSE), (Act.DOUBLE,))
    ]
    last = [(1, Act.SILENCE)] if more.random() < RARELY else []
    last += [(0, Act.FULL)] if links and number % 2 else []  # there are snapshots, and a disk for them
    events += [
        Event(process=f"server {shard}", point=more.choice(SERVER_POINTS), step=more.choice(early), act=act)
        for shard, act in last
    ]
    consistency = CONSISTENCIES[(seed + number) % len(CONSISTENCIES)]
    group = None
    if not number % 2 and "backup" not in consistency:  # a group does not go back to a snapshot
        ranks = random.Random(f"{seed}/{number}/ranks")  # of its own, likewise
        group = ranks.choice((0, 2))  # the frames of worker 1 lead through a host in the middle
        events += [
            Event(process=f"worker {group}/1", point=ranks.choice(POINTS), step=step, act=act)
            for step, act in zip(
                sorted(ranks.sample(spread, 2)),
                (ranks.choice((Act.KILL, Act.STOP)), ranks.choice((Act.SLEEP, Act.PAUSE))),
                strict=True,
            )
        ]
    carriers = tuple(
        "tcp" if worker == 1 and frames else rng.choice(CARRIERS) for worker in range(num_workers)
    )
    return Round(
        consistency=consistency,
        num_workers=num_workers,
        steps=steps,
        carriers=carriers,
        events=tuple(events),
        frames=tuple(
            FrameFault(kind=kind, step=step, do=do)
            for step, (kind, do) in zip(sorted(rng.sample(spread, len(frames))), frames, strict=True)
            if not (do is Do.REORDER and kind in NO_REORDER)
        ),
        group=group,
    )
