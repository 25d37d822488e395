"""The service of a worker: over gRPC, or, without servers, one inside this process."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from ps_wire.access.access import read
from ps_wire.errors import UsageError
from ps_wire.frames.service import LOCAL_SERVER, Service
from ps_worker.settings import Settings
from ps_worker.transport.grpc_service import GrpcService


def open_service(settings: Settings, say: Callable[[str], None]) -> Service:
    """The service at the servers of these settings; without any, a new one inside this process.

    Args:
        settings: of the worker or reader.
        say: told about changed certificates that cannot be taken.

    Raises:
        TokenRefused, TlsRefused: a file of `token_file` or `tls_dir` is not what it should be.
        UsageError: no server can run inside this process, as the entry point is not installed.
    """
    if not settings.servers:
        return _local()
    access = read(token_file=settings.token_file, tls_dir=settings.tls_dir, job=settings.job, complain=say)
    return GrpcService(settings.servers, access)


def _local() -> Service:
    for entry in entry_points(group=LOCAL_SERVER):
        made: Service = entry.load()()
        return made
    raise UsageError(
        f"to run alone, without PS_SERVERS, the entry point {LOCAL_SERVER} is needed and is not installed: "
        "install torch-parameter-server again (pip install -e . in a checkout), or set PS_SERVERS"
    )
