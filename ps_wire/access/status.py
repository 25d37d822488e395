"""Errors as gRPC statuses, for both ends: the status code, and class and facts in trailing metadata."""

from __future__ import annotations

import grpc

from ps_wire.errors import STATUS, PsError, ServerUnreachable, TlsRefused, facts_to_json, from_wire

ERROR_KEY = "ps-error"
FACTS_KEY = "ps-facts"
# The last: of a call that reached a server which was about to stop.
UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def code_of(error: PsError) -> grpc.StatusCode:
    """The status that this error ends a call with."""
    return grpc.StatusCode[STATUS[type(error)]]


def metadata_of(error: PsError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata that carries the error's class and facts."""
    facts = facts_to_json(error).encode("ascii", "backslashreplace").decode("ascii")
    return ((ERROR_KEY, type(error).__name__), (FACTS_KEY, facts))


def error_of(error: grpc.RpcError, address: str) -> PsError:
    """The error that a failed call means: the other side's own, or that it cannot be reached.

    Args:
        error: what gRPC raised.
        address: whom the call was made to, for the message.
    """
    code, details = error.code(), error.details() or ""
    metadata = dict(error.trailing_metadata() or ())
    if ERROR_KEY in metadata:
        return from_wire(metadata[ERROR_KEY], details, metadata.get(FACTS_KEY, ""))
    if code in UNREACHABLE:
        return ServerUnreachable(f"server {address} cannot be reached: {details}", address=address)
    if code is grpc.StatusCode.UNAUTHENTICATED:  # gRPC's own: it has looked for the name in the certificate
        return TlsRefused(
            f"server {address}: {details}: its certificate has to have the name by which it is reached here; "
            "of a name of two words the whole, for gRPC takes no *.WORD",
            address=address,
        )
    return PsError(f"server {address}: {code.name}: {details}", address=address)
