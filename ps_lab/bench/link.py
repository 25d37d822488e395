"""A slow link between workers and servers on one host: what was asked for, and the processes that are it.

Workers reach each server under another address of loopback, where a process forwards to the server's ports:
both keep their numbers, so that the data port a server offers is the forwarded one.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from typing import TypeAlias

from ps_lab.bench.session import ProcessPlan, run_module
from ps_lab.cluster.network import Link
from ps_lab.cluster.ports import HOST
from ps_lab.errors import BenchFailed
from ps_wire.errors import UsageError
from ps_wire.frames.carrier import Carrier

LINK_HOST = "127.0.0.2"
Route: TypeAlias = tuple[tuple[str, int], tuple[str, int]]  # where a link listens, and where it forwards to


def parse_link(gbps: float | None, ms: float | None, carrier: str) -> Link | None:
    """The link that was asked for, if any.

    Raises:
        UsageError: it makes no sense, or the carrier is not TCP.
    """
    if gbps is None and ms is None:
        return None
    if gbps is not None and not 0 < gbps < math.inf:
        raise UsageError(f"--link-gbps takes gigabits a second > 0, got {gbps:g}")
    if ms is not None and not 0 <= ms <= 10_000:
        raise UsageError(f"--link-ms takes milliseconds, 0 to 10000, got {ms:g}")
    if carrier != Carrier.TCP:
        raise UsageError(f"--link-gbps and --link-ms make a slow TCP link: add --carrier tcp, not {carrier}")
    return Link(gbps=gbps, ms=ms or 0.0)


def check_available() -> None:
    """Whether this machine has the second address of loopback.

    Raises:
        BenchFailed: it has not; the remedy is named.
    """
    try:
        with socket.create_server((LINK_HOST, 0)):
            pass
    except OSError as error:
        raise BenchFailed(
            f"a slow link needs the address {LINK_HOST}: {error.strerror or error}; Linux has it, elsewhere "
            f"try: sudo ifconfig lo0 alias {LINK_HOST}"
        ) from None


def through(addresses: Sequence[str], host: str = LINK_HOST) -> tuple[str, ...]:
    """Under which addresses workers reach these servers, through a link at this address of loopback."""
    return tuple(f"{host}:{_port(address)}" for address in addresses)


def routes(addresses: Sequence[str], data_ports: Sequence[int], host: str = LINK_HOST) -> list[Route]:
    """The ends that a link at this address of loopback forwards to these servers, for `throttled_link`."""
    return [((host, port), (HOST, port)) for port in (*map(_port, addresses), *data_ports)]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def plans(link: Link, addresses: Sequence[str], data_ports: Sequence[int]) -> tuple[ProcessPlan, ...]:
    """A process per server, which is its link."""
    found = []
    for index, (address, data_port) in enumerate(zip(addresses, data_ports, strict=True)):
        found.append(
            ProcessPlan(
                name=f"link {index}",
                command=run_module("ps_lab.bench.children.throttled_link"),
                configuration={
                    "bytes_per_s": None if link.gbps is None else link.gbps * 1e9 / 8,
                    "delay_s": link.ms / 1e3,
                    "routes": routes([address], [data_port]),
                },
                takes_turns=False,
            )
        )
    return tuple(found)
