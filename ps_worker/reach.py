"""How a worker gets to its service: over gRPC, or, without servers, one inside this process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from ps_wire.errors import UsageError
from ps_wire.service import LOCAL_SERVER, Service
from ps_worker.grpc_service import GrpcService


def reach(servers: Sequence[str]) -> Service:
    """The service at these addresses; without any, a new one inside this process.

    Raises:
        UsageError: no server can run inside this process, as the entry point is not installed.
    """
    return GrpcService(servers) if servers else _local()


def _local() -> Service:
    for entry in entry_points(group=LOCAL_SERVER):
        made: Service = entry.load()()
        return made
    raise UsageError(
        f"to run alone, without PS_SERVERS, the entry point {LOCAL_SERVER} is needed and is not installed: "
        "install torch-parameter-server again (pip install -e . in a checkout), or set PS_SERVERS"
    )
