"""Seconds per round: every worker pushes the gradient of every parameter and has pulled every new weight.

The project, its peers and the machine's own limit are started once and take turns, round by round, since only
ratios of medians that were taken in one run count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ps_lab.bench import limit, usage
from ps_lab.bench.carriers import carrier_of
from ps_lab.bench.figures import Round, Summary, cpu_s_per_gb, summarize
from ps_lab.bench.parties import WARM_UP_ROUNDS, interleave
from ps_lab.bench.peers import PEERS, Peer
from ps_lab.bench.session import ProcessParty, Session
from ps_lab.bench.setup import Setup
from ps_lab.bench.watcher import Watcher
from ps_lab.cluster.cluster import Job
from ps_lab.errors import BenchFailed
from ps_lab.status.observer import ask
from ps_wire.frames.carrier import AUTO, Carrier

PROJECT = "project"
JOB = "bench"
SCRIPT = Path(__file__).with_name("children") / "project_worker.py"
PROCESS_BYTES = 250 << 20  # of python with torch, idle


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundtripOutcome:
    """Measured times of round trips.

    Attributes:
        setup: of the run.
        carrier: that the project's workers had.
        rounds: of each party, by name: the project, the peers, and the limit if it was measured.
        server_peak_rss_bytes: resident memory of the project's servers at its peak, the end of the job
            included, all servers together; None where the system does not say.
        server_borrowed_bytes: of that, memory that workers have made and lent, looked at after the last
            round, or where the peak is at the end of the job, then; None where the system does not say.
        server_state_bytes: weights and optimizer state that they hold.
    """

    setup: Setup
    carrier: str
    rounds: Mapping[str, list[Round]]
    server_peak_rss_bytes: int | None
    server_borrowed_bytes: int | None
    server_state_bytes: int

    def summary(self, party: str) -> Summary:
        """Seconds per round of a party."""
        return summarize(self.rounds[party])

    def ratio(self, party: str) -> float:
        """The project's median over that party's."""
        return self.summary(PROJECT).median / self.summary(party).median

    def cpu_s_per_gb(self, party: str) -> float | None:
        """CPU-seconds of all processes of a party per GB that all workers pushed and pulled."""
        return cpu_s_per_gb(self.rounds[party], self.setup.bytes_per_round)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` writes."""
        setup = self.setup

        def against(party: str) -> dict[str, Any]:
            return {"round_s": self.summary(party).to_json(), "ratio": self.ratio(party)}

        return {
            "model": setup.model,
            "parameters": setup.parameters,
            "tensors": len(setup.shapes),
            "bytes": setup.weight_bytes,
            **setup.to_json(self.carrier),
            "wire_dtype": setup.wire_dtype,
            "round_s": self.summary(PROJECT).to_json(),
            "cpu_s_per_gb": self.cpu_s_per_gb(PROJECT),
            "server_peak_rss_bytes": self.server_peak_rss_bytes,
            "server_borrowed_bytes": self.server_borrowed_bytes,
            "server_state_bytes": self.server_state_bytes,
            "peers": {name: against(name) for name in setup.peers},
            "limit": against(limit.NAME) if setup.with_limit else None,
            "one_pass": against(limit.ONE_PASS) if limit.ONE_PASS in self.rounds else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All that takes part, ready for its first round.

    Attributes:
        session: that holds the processes.
        parties: the project first, then the peers, the limits last.
        carrier: that the project's workers have.
    """

    session: Session
    parties: list[ProcessParty]
    carrier: str


@contextmanager
def started(setup: Setup, watcher: Watcher, *, peers: Mapping[str, Peer] = PEERS) -> Iterator[Started]:
    """Starts all parties; they end with the block.

    Args:
        setup: who does rounds of what.
        watcher: is told how it gets on.
        peers: those that `setup.peers` names.

    Raises:
        BenchFailed: they do not fit into memory, or a process hangs.
        ProcessFailed: a process ended.
        Interrupted: a signal came.
    """
    check_memory(setup, peers, available_bytes=usage.available_bytes())
    watcher.phase("starting servers", 0)
    with project_session(setup, watcher) as session:
        watcher.phase("starting workers and peers", 0)
        yield _start(session, setup, peers)


def measure(setup: Setup, watcher: Watcher, *, peers: Mapping[str, Peer] = PEERS) -> RoundtripOutcome:
    """Runs the bench. Call it in the main thread: it takes over the signals that stop a program.

    Args and errors are those of `started`.
    """
    with started(setup, watcher, peers=peers) as run:
        watcher.phase("rounds", len(run.parties) * (WARM_UP_ROUNDS + setup.rounds))
        rounds = interleave(run.parties, setup.rounds, on_round=watcher.advance)
        servers = [server.pid for server in run.session.cluster.servers]
        peak, borrowed = _memory(servers)
        status = ask(run.session.cluster.addresses, run.session.cluster.access)
        run.parties[0].finish()
        at_end, lent = _memory(servers)
        if (at_end or 0) > (peak or 0):
            peak, borrowed = at_end, lent
    job = status.job(JOB)
    assert job is not None, "the servers keep a job until they stop"
    return RoundtripOutcome(
        setup=setup,
        carrier=run.carrier,
        rounds=rounds,
        server_peak_rss_bytes=peak,
        server_borrowed_bytes=borrowed,
        server_state_bytes=sum(table.weight_bytes + table.optimizer_bytes for table in job.tables),
    )


def _memory(servers: Sequence[int]) -> tuple[int | None, int | None]:
    """Measures what servers have had resident at their peak, and what they have borrowed now."""
    return _total(usage.peak_rss_bytes, servers), _total(usage.borrowed_bytes, servers)


def _total(look: Callable[[int], int | None], pids: Sequence[int]) -> int | None:
    found = [look(pid) for pid in pids]
    return None if None in found else sum(count or 0 for count in found)


def check_memory(setup: Setup, peers: Mapping[str, Peer], *, available_bytes: int | None) -> None:
    """Refuses what cannot fit: all parties are there at once.

    Args:
        setup: who takes part.
        peers: those that it names.
        available_bytes: of memory; None: not known, and nothing is refused.

    Raises:
        BenchFailed: the least that the parties take is more.
    """
    copies = {PROJECT: _copies(setup)}
    copies |= {name: peers[name].copies(setup) for name in setup.peers}
    copies |= {limit.NAME: limit.copies(setup)} if setup.with_limit else {}
    processes = setup.num_servers + setup.num_workers * (1 + len(setup.peers))
    needed = sum(copies.values()) * setup.weight_bytes + processes * PROCESS_BYTES
    if available_bytes is not None and needed > available_bytes:
        shares = ", ".join(f"{name} {_gib(count * setup.weight_bytes)}" for name, count in copies.items())
        raise BenchFailed(
            f"the bench needs at least {_gib(needed)} GiB ({shares}), and {_gib(available_bytes)} GiB are "
            "free: leave peers out of --versus, take fewer workers, or pass --no-limit"
        )


def _copies(setup: Setup) -> int:
    """How often the project's processes hold the weights' bytes at least, at their peak."""
    maps = setup.consistency == "bsp" and setup.asked_carrier in (AUTO, Carrier.SHM)
    if maps:  # before the first step each worker has weights of its own; then there are two halves for all
        return max(1 + 2 * setup.num_workers, 2 + setup.state_slots + setup.num_workers)
    return 2 + setup.state_slots + 2 * setup.num_workers


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f}"


def project_session(
    setup: Setup, watcher: Watcher, environment: Mapping[str, str] = MappingProxyType({})
) -> Session:
    """The project's servers, and room for everybody else; `environment` is added to ours."""
    return Session(
        num_servers=setup.num_servers,
        on_line=watcher.line,
        server_options=() if setup.tls_dir is None else ("--tls-dir", setup.tls_dir),
        environment=environment,
        hosts=setup.server_hosts,
    )


def start_project(
    session: Session, setup: Setup, *, name: str = PROJECT, job_name: str = JOB
) -> ProcessParty:
    """Starts the project's workers; several jobs beside each other have names of their own."""
    job = Job(
        name=job_name,
        consistency=setup.consistency,
        num_workers=setup.num_workers,
        script=SCRIPT,
        carrier=setup.asked_carrier,
        wire_dtype=setup.wire_dtype,
        hosts=setup.hosts,
    )
    configuration = {"shapes": setup.shapes, "optimizer": setup.optimizer}
    return session.start_workers(job, configuration, name=name, limit_s=setup.limit_s)


def _start(session: Session, setup: Setup, peers: Mapping[str, Peer]) -> Started:
    limit_s = setup.limit_s
    parties = [start_project(session, setup)]
    parties += [session.start(name, peers[name].plan(setup), limit_s=limit_s) for name in setup.peers]
    session.wait_ready(limit_s=limit_s)
    carrier = carrier_of(session.cluster.addresses, JOB, session.cluster.access)
    if setup.with_limit:
        limits = {limit.NAME: limit.plan(setup, carrier), limit.ONE_PASS: limit.one_pass(setup, carrier)}
        parties += [session.start(name, plans, limit_s=limit_s) for name, plans in limits.items() if plans]
        session.wait_ready(limit_s=limit_s)
    return Started(session=session, parties=parties, carrier=carrier)
