"""The carrier that a job of a bench got, as the servers say; `auto` is decided between them and workers."""

from __future__ import annotations

from ps_lab.errors import BenchFailed
from ps_lab.status.observer import ask
from ps_wire.access.access import OPEN, Access


def carrier_of(servers: tuple[str, ...], job: str, access: Access = OPEN) -> str:
    """The name of the carrier that all workers of a job have.

    Raises:
        BenchFailed: they have different ones, so that no figure would be of one carrier.
        ServerUnreachable: a server does not answer.
    """
    found = ask(servers, access).job(job)
    assert found is not None, "its workers have joined"
    names = {name for table in found.tables for worker in table.workers for name in worker.carriers}
    if len(names) != 1:
        raise BenchFailed(
            f"the workers have {', '.join(sorted(names)) or 'no carrier'}: name one with --carrier"
        )
    return names.pop()


def carrier_text(carrier: str, asked: str) -> str:
    """Names the carrier, and the one that was asked for if that is another; for people."""
    return carrier if asked == carrier else f"{carrier} ({asked})"
