"""Addresses of servers, as a person types them, and names of jobs."""

from __future__ import annotations

import ipaddress
import re

from ps_wire.errors import AddressInvalid, UsageError

MAX_SERVERS = 4096
_RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,64}\]")
_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_address(text: str) -> str:
    """`HOST:PORT`, checked; IPv6 hosts are written in brackets.

    Raises:
        AddressInvalid: it is not of that form, or the port is not in 1..65535.
    """
    host, _, port = text.strip().rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise AddressInvalid(f"{text[:80]!r}: write an IPv6 host as [HOST]:PORT", address=text[:80])
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port):
        raise AddressInvalid(f"{text[:80]!r} is not HOST:PORT", address=text[:80])
    if not 1 <= int(port) <= 65535:
        raise AddressInvalid(f"{text[:80]!r}: the port must be in 1..65535", address=text[:80])
    return f"{host}:{int(port)}"


def parse_servers(text: str) -> tuple[str, ...]:
    """A comma-separated list of addresses, in shard order; `{0..3}` in one stands for its numbers.

    Raises:
        AddressInvalid: one is not HOST:PORT, one comes twice, or there are none or too many.
    """
    servers: list[str] = []
    for part in text.split(","):
        match = _RANGE.search(part)
        if len(_RANGE.findall(part)) > 1:
            raise AddressInvalid(f"{part[:80]!r}: one range in an address", address=part[:80])
        if match is None:
            servers.append(parse_address(part))
            continue
        first, last = int(match[1]), int(match[2])
        if last < first or last - first >= MAX_SERVERS:
            raise AddressInvalid(f"{part!r}: the range is empty or too long", address=part)
        servers += [
            parse_address(f"{part[: match.start()]}{number}{part[match.end() :]}")
            for number in range(first, last + 1)
        ]
    if len(servers) > MAX_SERVERS:
        raise AddressInvalid(f"{len(servers)} servers; at most {MAX_SERVERS}")
    for position, server in enumerate(servers):
        if server in servers[:position]:
            raise AddressInvalid(f"{server} is listed twice", address=server)
    return tuple(servers)


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach what listens on that host, an address or `localhost`."""
    name = host.strip().strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:  # a name of a host: what it stands for may change
        return False


def check_job_name(name: str) -> str:
    """A job's name: 1 to 64 letters, digits, dots, dashes, underscores.

    Raises:
        UsageError: it is anything else.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"job name {name[:80]!r}: use 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    return name
