"""A network on one machine: hosts that are network namespaces of this machine, each behind a shaped link.

All links end at one bridge, as at a switch. Each is shaped both ways: by a token bucket, or, where bytes are
to be under way for some time, by netem. Namespaces are made inside a user namespace of our own (`enter`), so
nothing of the machine's own network is touched, and all of it is gone with the last process. It must not
know who runs on the hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NoReturn

from ps_lab.cluster.host import Host
from ps_lab.cluster.namespace import Namespace
from ps_lab.errors import BenchFailed
from ps_wire.errors import UsageError

INSIDE = "PS_BENCH_NETWORK"  # of the environment: this process is in a namespace of its own
UNSHARE = ("unshare", "--user", "--map-root-user", "--net")
AGAIN = (sys.executable, "-c", "from ps_lab.cli import main; main()")
TRIAL = "ip link set lo up && ip link add br0 type bridge && ip link add va type veth peer name vb"
TRIAL_LIMIT_S = 30.0
NETWORK = "10.77.0.{}"
SWITCH = 254  # our own address there; of hosts, their number counted from one
MOST_HOSTS = 100
INTERFACE = "eth0"
TICK_S = 1 / 250  # of the kernel: a token bucket holds what goes in one, and is no slower than it should be
LEAST_BURST_BYTES = 128 << 10  # two segments as the kernel hands them to a link
QUEUE_S = 0.05  # longer is dropped, and TCP goes slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A network link: of a host, or before each server, shared by the workers.

    Attributes:
        gbps: gigabits a second each way, both ways at once; None: as fast as it goes.
        ms: milliseconds that a byte is under way, each way.
    """

    gbps: float | None
    ms: float

    @property
    def text(self) -> str:
        """For people."""
        rate = "" if self.gbps is None else f"{self.gbps:g} Gbit/s"
        return ", ".join(part for part in (rate, f"{self.ms:g} ms" if self.ms else "") if part)


def check(count: int) -> None:
    """Refuses a number of hosts that makes no sense.

    Raises:
        UsageError: it does not.
    """
    if not 2 <= count <= MOST_HOSTS:
        raise UsageError(f"--hosts takes 2 to {MOST_HOSTS}, got {count}")


def enter(link: Link | None) -> None:
    """Has this process go on inside a network namespace of its own, from its beginning; once.

    Raises:
        BenchFailed: there can be none here, or no such link; the reason is named.
    """
    if INSIDE in os.environ:
        return
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing:
        raise BenchFailed(f"--hosts makes network namespaces, and {', '.join(missing)} is not installed")
    shapes = [] if link is None else [("tc", *shape(link, "va"))]
    words = [*UNSHARE, "sh", "-c", " && ".join([TRIAL, *map(" ".join, shapes)])]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_LIMIT_S, check=False)
    if tried.returncode:
        why = tried.stderr.strip().splitlines() or ["no reason was given"]
        delay = "; --link-ms needs the kernel's sch_netem" if link is not None and link.ms else ""
        raise BenchFailed(
            "--hosts makes network namespaces, which is not permitted here, or not all of it: "
            f"{why[-1]}{delay}"
        )
    _again()


def _again() -> NoReturn:
    os.environ[INSIDE] = "1"
    os.execv(shutil.which(UNSHARE[0]) or UNSHARE[0], [*UNSHARE, *AGAIN, *sys.argv[1:]])  # noqa: S606 - no shell is wanted


def shape(link: Link, device: str) -> tuple[str, ...]:
    """The words to `tc` that make what leaves by a device as slow as a link."""
    queue = ("qdisc", "replace", "dev", device, "root")
    rate = () if link.gbps is None else ("rate", f"{round(link.gbps * 1e9)}bit")
    if link.ms:
        return (*queue, "netem", "delay", f"{link.ms:g}ms", *rate, "limit", "100000")
    if link.gbps is None:
        return (*queue, "pfifo")
    burst = max(LEAST_BURST_BYTES, round(link.gbps * 1e9 / 8 * TICK_S))
    return (*queue, "tbf", *rate, "burst", str(burst), "latency", f"{round(1000 * QUEUE_S)}ms")


@contextmanager
def network(count: int, link: Link | None) -> Iterator[tuple[Host, ...]]:
    """So many hosts, once, where `enter` has led; the last process takes them along.

    Raises:
        BenchFailed: something of it cannot be made.
    """
    with ExitStack() as stack:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "switch", "type", "bridge")
        _run("ip", "addr", "add", f"{NETWORK.format(SWITCH)}/24", "dev", "switch")
        _run("ip", "link", "set", "switch", "up")
        yield tuple(_host(stack, number, link) for number in range(1, count + 1))


def _host(stack: ExitStack, number: int, link: Link | None) -> Host:
    try:
        inside = stack.enter_context(Namespace())
    except OSError as error:
        raise BenchFailed(f"no network namespace for host {number}: {error}") from None
    ours, address = f"host{number}", NETWORK.format(number)
    _run("ip", "link", "add", ours, "type", "veth", "peer", "name", INTERFACE, "netns", str(inside.pid))
    _run("ip", "link", "set", ours, "master", "switch", "up")
    _run(*inside.enter, "ip", "addr", "add", f"{address}/24", "dev", INTERFACE)
    for device in ("lo", INTERFACE):
        _run(*inside.enter, "ip", "link", "set", device, "up")
    if link is not None:
        _run("tc", *shape(link, ours))
        _run(*inside.enter, "tc", *shape(link, INTERFACE))
    return Host(address=address, interface=INTERFACE, enter=inside.enter)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(f"{' '.join(words)}: {done.stderr.strip()}")


def placed(hosts: Sequence[Host], index: int) -> Host:
    """The host of a process: they go round the hosts."""
    return hosts[index % len(hosts)]
