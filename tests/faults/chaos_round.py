"""One round of chaos: a job from its start to its end, and what happens to its processes meanwhile."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.integration.manifests import manifests
from tests.integration.processes import LIMIT_S, Process
from tests.integration.servers import until

from . import limits
from .controller import Faults, Stop
from .links import Disk, Link
from .middle import Fault, Middle
from .proxy import Proxy
from .schedule import Act, Event, Round
from .trainer import OVER
from .world import World, place_of

ROUND_LIMIT_S = 400.0  # for its workers to end; what a fault waits for has 40 s
TRIES = 3  # of shard 1 to reach shard 0, until it does again
AGAIN = 75  # how a worker ends that is to be started again
LIVENESS = limits.text(  # else a silent peer is noticed after 15 s, or after 25
    ps_worker__transport__liveness__SILENT_S=0.5,
    ps_worker__transport__liveness__ANSWER_LIMIT_S=2.0,
    ps_wire__sockets__frame_socket__KEEPALIVE_S=(1, 1, 1),
)
NOTICED = "does not answer|broke; trying again"
LOST = "coordinator .*; trying again"
SNAPSHOTS = "snapshots"  # of a round's folder


class Chaos:
    """One round.

    Attributes:
        happened: events that came to their point, in that order.
    """

    def __init__(
        self,
        world: World,
        faults: Faults,
        plan: Round,
        networks: list[Link],
        between: Proxy,
        disk: Disk | None,
        folder: Path,
    ) -> None:
        """Takes the way from shard 1 to shard 0, the disk of snapshots, and the folder of the round."""
        self.happened: list[Event] = []
        self._world = world
        self._faults = faults
        self._plan = plan
        self._networks = networks
        self._between = between
        self._disk = disk
        self._snapshots = folder / SNAPSHOTS
        self._over = folder / "over"  # is there when all has happened: workers train until then
        self._reach: dict[int, str] = {}
        self._workers: dict[str, Process] = {}  # by name: a group has one for each rank
        self._begun: list[Process] = []  # of all workers, also those whose place another has taken
        self._killed: list[Process] = []
        self._lock = threading.Lock()  # guards who is which worker
        self._pausing = {name: threading.Lock() for name in plan.processes}
        self._linking = [threading.Lock() for _ in range(plan.num_workers)]
        self._serving = [threading.Lock() for _ in world.servers.processes]  # one fault at a time each
        self._parting = threading.Lock()  # one fault at a time between the servers
        self._errors: list[BaseException] = []

    def run(self) -> None:
        """From the start of the job until all have ended, and the laws hold."""
        events = {
            self._faults.arm(event.process, event.point, since=event.step): event
            for event in self._plan.events
        }
        with self._middle() as middle:
            if middle is not None:
                self._reach[1] = f"{self._world.servers.addresses[0]},{middle.address}"
            for name in self._plan.processes:
                self._begin(name)
            stopping = threading.Event()
            doing = threading.Thread(target=self._do_all, args=(events, stopping), daemon=True)
            doing.start()
            until_s = time.monotonic() + ROUND_LIMIT_S
            try:
                self._wait_all(until_s)
            finally:
                stopping.set()
                doing.join(LIMIT_S)
                for process in self._killed:
                    process.wait_end()
        if self._errors:
            raise self._errors[0]
        self._world.check(*range(self._plan.num_workers), group=self._plan.group)

    @contextlib.contextmanager
    def _middle(self) -> Iterator[Middle | None]:
        if not self._plan.frames:
            yield None
            return
        wanted = [Fault(kind=frame.kind, step=frame.step, do=frame.do) for frame in self._plan.frames]
        for fault in wanted:
            fault.go()  # what is delayed gives way to other threads, and goes on
        with Middle(self._world.servers.addresses[1], self._world.data_ports[1], wanted) as middle:
            yield middle

    def _begin(self, name: str) -> None:
        worker, rank = place_of(name)
        extra = {OVER: str(self._over)} | ({"ROLLBACKS": "1"} if self._plan.ends_servers else {})
        extra |= {limits.LIMITS: LIVENESS}
        reach = self._reach.get(worker)
        if self._networks:
            extra |= self._networks[worker].environment
            reach = self._world.servers.option.replace("127.0.0.1", self._networks[worker].host)
        self._workers[name] = self._world.begin(
            worker,
            f"{self._plan.num_workers}",
            carrier=self._carrier(worker),
            steps=self._plan.steps,
            reach=reach,
            extra=extra,
            rank=rank if worker == self._plan.group else None,
        )
        self._begun.append(self._workers[name])

    def _carrier(self, worker: int) -> str:
        return "auto" if self._networks else self._plan.carriers[worker]

    def _wait_all(self, until_s: float) -> None:
        """Until all workers have ended; the ranks of a group, each by itself, are started again together."""
        waiting = [
            threading.Thread(target=self._noting, args=(self._wait, name, until_s), daemon=True)
            for name in self._plan.processes
        ]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()

    def _wait(self, name: str, until_s: float) -> None:
        """Until the process that is this worker last has ended."""
        while True:
            process = self._workers[name]
            code = process.wait_end(max(until_s - time.monotonic(), 1.0))
            if not self._is_followed(name, process, code):
                assert code == 0, f"{name}: {process.end}:\n{process.text}"
                return

    def _is_followed(self, name: str, process: Process, code: int) -> bool:
        """Whether a worker has another process after one that ended; as its supervisor sees to it."""
        with self._lock:
            if self._workers[name] is process and code == AGAIN:
                self._begin(name)
            return self._workers[name] is not process

    def _do_all(self, events: dict[Stop, Event], stopping: threading.Event) -> None:
        threads: list[threading.Thread] = []
        while not (stopping.is_set() or self._errors or len(threads) == len(events)):
            stop = self._faults.poll_stop()
            if stop is not None:
                doing = self._act, events[stop], stop
                threads.append(threading.Thread(target=self._noting, args=doing, daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(LIMIT_S)
        self._over.touch()

    def _noting(self, what: Callable[..., None], *given: object) -> None:
        try:
            what(*given)
        except BaseException as error:  # noqa: BLE001 - it is raised again by `run`
            self._errors.append(error)

    def _act(self, event: Event, stop: Stop) -> None:
        self.happened.append(event)
        name = event.process
        if name.startswith("server"):
            self._act_on_server(int(name.split()[1]), event.act, stop)
            return
        worker, _ = place_of(name)
        process = self._workers[name]
        match event.act:
            case Act.KILL:
                with self._lock:
                    process.signal(signal.SIGKILL)
                    self._begin(name)
                    self._killed.append(process)
            case Act.STOP:
                process.signal(signal.SIGTERM)
                stop.go()
                self._is_followed(name, process, process.wait_end())
            case Act.PAUSE | Act.SLEEP:
                with self._pausing[name]:  # else one that ends would end another, too
                    self._pause(name, event.act, stop)
            case Act.CUT | Act.BLINK | Act.SILENCE | Act.LOSS:
                stop.go()
                with self._linking[worker]:  # else one that ends would end another, too
                    self._act_on_network(name, process, event.act)

    def _act_on_network(self, name: str, process: Process, act: Act) -> None:
        worker, _ = place_of(name)
        network = self._networks[worker]
        with contextlib.ExitStack() as after:
            match act:
                case Act.CUT | Act.BLINK:
                    after.callback(network.mend)
                    network.cut()
                    if act is Act.CUT:
                        self._wait_evicted(name, process)
                case Act.SILENCE:
                    before = len(re.findall(NOTICED, process.text))
                    after.callback(network.speak)
                    network.silence()
                    until(  # one that was evicted says nothing more before it has joined again
                        lambda: (
                            self._is_gone(name, process) or len(re.findall(NOTICED, process.text)) > before
                        ),
                        f"{name} says that nothing comes",
                    )
                case Act.LOSS:
                    after.callback(network.lose_no_more)
                    network.lose()
                    until(network.lost, f"packets to worker {worker} are lost")

    def _pause(self, name: str, act: Act, stop: Stop) -> None:
        process = self._workers[name]
        with contextlib.suppress(ProcessLookupError):
            process.signal(signal.SIGSTOP)
        stop.go()
        try:
            until(lambda: is_stopped(process), f"{process.name} is stopped")
            if act is Act.SLEEP:
                self._wait_evicted(name, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)

    def _act_on_server(self, shard: int, act: Act, stop: Stop) -> None:
        """One at a time to the process of a shard, and to the way between the shards."""
        serving, between = self._serving[shard], self._parting
        match act:
            case Act.CUT | Act.BLINK:
                with self._turn(stop, between):
                    self._part(act, stop)
            case Act.SILENCE:
                with self._turn(stop, between):
                    self._silence_between(stop)
            case Act.FULL:
                with self._turn(stop, *self._serving):
                    self._fill_disk(stop)
            case Act.HANG | Act.PAUSE:
                with self._turn(stop, serving):
                    self._hang_server(shard, act, stop)
            case Act.DOUBLE:
                with self._turn(stop, serving):  # else the port may be free, of one that is about to end
                    stop.go()
                    second = self._world.begin_server_twice(shard)
                    assert second.wait_end() == 69, second.text
            case Act.KILL | Act.STOP:
                with self._turn(stop, serving):
                    self._end_server(shard, act, stop)

    @contextlib.contextmanager
    def _turn(self, stop: Stop, *locks: threading.Lock) -> Iterator[None]:
        """Where another fault is not over, the process goes on meanwhile: else that one may wait for it."""
        with contextlib.ExitStack() as held:
            for lock in locks:
                if not lock.acquire(blocking=False):
                    stop.go()
                    lock.acquire()
                held.callback(lock.release)
            yield

    def _part(self, act: Act, stop: Stop) -> None:
        self._between.cut()
        stop.go()
        try:
            self._between.wait_tries(TRIES * (act is Act.CUT))
        finally:
            self._between.mend()

    def _hang_server(self, shard: int, act: Act, stop: Stop) -> None:
        process = self._world.servers.processes[shard]
        silence = f"shard {shard} at .* does not answer"
        before = self._count(silence)
        process.signal(signal.SIGSTOP)
        stop.go()
        try:
            until(lambda: is_stopped(process), f"{process.name} is stopped")
            if act is Act.HANG:
                until(lambda: self._count(silence) > before, f"a worker says that shard {shard} hangs")
        finally:
            process.signal(signal.SIGCONT)

    def _silence_between(self, stop: Stop) -> None:
        shard = self._world.servers.processes[1]
        before = len(re.findall(LOST, shard.text))
        self._between.silence()
        stop.go()
        try:
            until(
                lambda: (
                    self._world.servers.processes[1] is not shard
                    or len(re.findall(LOST, shard.text)) > before
                ),
                "shard 1 says that nothing comes from shard 0",
            )
        finally:
            self._between.speak()

    def _fill_disk(self, stop: Stop) -> None:
        assert self._disk is not None
        coordinator = self._world.servers.processes[0]
        self._disk.fill()
        stop.go()
        try:  # an older snapshot may be deleted meanwhile, and leave room for one more
            self._wait_snapshot(coordinator, "NO SNAPSHOT.*No space left", self._disk.fill)
        finally:
            self._disk.empty()
        self._wait_snapshot(coordinator, ": snapshot .* of step")

    def _wait_snapshot(
        self, coordinator: Process, pattern: str, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Until the coordinator says so once more, or the job is over; calls `meanwhile` at each look."""
        before = len(re.findall(pattern, coordinator.text))

        def said() -> bool:
            meanwhile()
            return self._over.exists() or len(re.findall(pattern, coordinator.text)) > before

        until(said, f"the coordinator says {pattern!r}")

    def _count(self, pattern: str) -> int:
        """How often workers have said it, those of before too."""
        return sum(len(re.findall(pattern, process.text)) for process in tuple(self._begun))

    def _end_server(self, shard: int, act: Act, stop: Stop) -> None:
        """And starts it again, at the same address; not before there is a snapshot to go back to."""
        if not manifests(self._snapshots):
            stop.go()
            return
        process = self._world.servers.processes[shard]
        if act is Act.KILL:
            process.kill()  # and its port is free
        else:
            process.signal(signal.SIGTERM)
            stop.go()
            assert process.wait_end() == 0, process.text
        self._world.begin_server_again(shard)

    def _wait_evicted(self, name: str, process: Process) -> None:
        until(lambda: self._is_gone(name, process), f"{name} is evicted")

    def _is_gone(self, name: str, process: Process) -> bool:
        """Whether it is evicted, or has another process by now.

        A job that went back to a snapshot may have no worker of this number, or wait for it to return.
        """
        worker, _ = place_of(name)
        followed = self._workers[name] is not process
        return followed or self._world.state(worker) not in ("running", "joining", "unknown")


def is_stopped(process: Process) -> bool:
    """Whether SIGSTOP has arrived, or the process is gone; its number stays until somebody waits for it."""
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "Z", "X"}
    except OSError:
        return True
