"""The links of the hosts of a run: a process for each, which forwards to all servers at the pace of the link.

Each host has an address of loopback of its own, under which its workers reach the servers; a straggler
`slow_link` makes the link of its worker slower. Nothing of the machine's network is changed, and no
permission is needed; data over shared memory would pass by a link, so its workers take TCP.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ps_lab.bench.link import routes, through
from ps_lab.bench.session import run_module
from ps_lab.bench.turns import parse_answer
from ps_lab.cluster.child import Child
from ps_lab.cluster.cluster import START_LIMIT_S, Cluster
from ps_lab.experiments.experiment import Host
from ps_lab.experiments.plan import Run
from ps_wire.errors import StartLimitExceeded, UsageError
from ps_wire.spec.stragglers import SlowLink, StragglerProfile

MOST_HOSTS = 200
MODULE = "ps_lab.bench.children.throttled_link"
BYTES_PER_MEGABIT = 125_000.0
TICK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """The link of one host in one run.

    Attributes:
        address: of loopback, under which its workers reach the servers.
        workers: that are behind it.
        bytes_per_s: each way, shared by its workers.
        delay_s: each way.
    """

    address: str
    workers: tuple[int, ...]
    bytes_per_s: float
    delay_s: float


def check_links(hosts: Sequence[Host], profile: StragglerProfile, num_workers: int) -> None:
    """Refuses what no links can be made of.

    Raises:
        UsageError: a slow link is wanted of a worker that has none, or shares one with another; or there are
            too many hosts.
    """
    if len(hosts) > MOST_HOSTS:
        raise UsageError(f"hosts: at most {MOST_HOSTS} hosts can be made here, got {len(hosts)}")
    for part in profile.parts:
        if not isinstance(part, SlowLink):
            continue
        slow = set(part.workers or range(num_workers))
        linked = {worker for host in hosts for worker in host.workers}
        if alone := sorted(slow - linked):
            raise UsageError(
                f"slow_link: worker {alone[0]} has no link that could be slow: give it a table in [[hosts]]"
            )
        for host in hosts:
            if slow & set(host.workers) and not slow.issuperset(host.workers):
                raise UsageError(
                    f"slow_link: workers {', '.join(map(str, host.workers))} share the link of their host: "
                    "name all of them, or give each a table in [[hosts]] of its own"
                )


def links_of(run: Run) -> tuple[HostLink, ...]:
    """The links that a run has, with its slow ones as slow as they are to be."""
    profile = run.profile.stragglers(run.seed)
    found = []
    for number, host in enumerate(run.hosts, start=2):
        factor = profile.at(host.workers[0], 0).link_factor
        found.append(
            HostLink(
                address=f"127.0.0.{number}",
                workers=host.workers,
                bytes_per_s=host.megabits_per_s * BYTES_PER_MEGABIT / factor,
                delay_s=host.delay_ms / 1e3 * factor,
            )
        )
    return tuple(found)


class LinkProcesses:
    """The processes of links; `close` ends them. One thread uses it."""

    def __init__(
        self, links: Sequence[HostLink], cluster: Cluster, on_line: Callable[[str, str], None]
    ) -> None:
        """Starts them, and returns when they forward.

        Raises:
            StartLimitExceeded: one does not answer.
        """
        self._links = links
        self._cluster = cluster
        self._children: list[Child] = []
        if not links:
            return
        try:
            self._wait_for([self._start(number, link, on_line) for number, link in enumerate(links)])
        except BaseException:
            self.close()
            raise

    @property
    def children(self) -> tuple[Child, ...]:
        """One for each link."""
        return tuple(self._children)

    def addresses(self) -> Mapping[int, tuple[str, ...]]:
        """Worker -> addresses under which it reaches the servers."""
        return {
            worker: through(self._cluster.addresses, link.address)
            for link in self._links
            for worker in link.workers
        }

    def close(self) -> None:
        """Ends them; they hold nothing that is worth an orderly end."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.join()

    def _wait_for(self, ready: Sequence[threading.Event]) -> None:
        until_s = time.monotonic() + START_LIMIT_S
        for child, answered in zip(self._children, ready, strict=True):
            while not answered.wait(TICK_S):
                if child.exit_code is not None or time.monotonic() >= until_s:
                    raise StartLimitExceeded(f"{child.name} does not forward; the log has its output")

    def _start(self, number: int, link: HostLink, on_line: Callable[[str, str], None]) -> threading.Event:
        answered = threading.Event()

        def said(name: str, line: str) -> None:
            if parse_answer(line) is None:
                on_line(name, line)
            else:
                answered.set()

        child = self._cluster.start_beside(f"link {number}", run_module(MODULE), {}, said, with_stdin=True)
        self._children.append(child)
        forwards = routes(self._cluster.addresses, self._cluster.data_ports, link.address)
        child.tell(json.dumps({"bytes_per_s": link.bytes_per_s, "delay_s": link.delay_s, "routes": forwards}))
        return answered
