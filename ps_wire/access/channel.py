"""Options and certificates of gRPC channels and servers, both ends in one place.

A client that pings more often than the server allows is cut off with GOAWAY `too_many_pings`, so the two
lists of options below change together. Times are in milliseconds, as gRPC takes them.
"""

from __future__ import annotations

import grpc
import grpc.aio

from ps_wire.access.access import OPEN, Access
from ps_wire.access.certificates import Identity, TlsFolder

MAX_MESSAGE_BYTES = 16 << 20  # a partition of 8 MiB with its header is over gRPC's default of 4 MiB

MAX_CONNECTIONS = 16_384  # to one port, whoever has made them

_BOTH: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The default of 16 KiB costs a header and a copy per 16 KiB of a partition.
    ("grpc.http2.max_frame_size", 1 << 20),
    # A peer that vanished, or whose process hangs, is noticed after 15 s by either end, with calls in flight
    # or not. Without a limit for pings of its own that is 70 s where the peer's host is alive: measured.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CLIENT: list[tuple[str, int]] = [
    *_BOTH,
    # A shard that comes back has another address: with the defaults it is found after 21 s, with
    # these after 0.1 s (clean restart) or 1.8 s (the node vanished without FIN).
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),  # this is also the connect timeout
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Every connection of a worker has its own transport: one slow stream never holds up another.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER: list[tuple[str, int]] = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.server_handshake_timeout_ms", 10_000),  # for a stranger to get through TLS and HTTP/2
    ("grpc.max_concurrent_streams", 1024),  # of one connection; a worker has a handful
    # A connection without calls costs 20 KiB: it ends, and who means well makes another with its next call.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    # Two servers on one port would each get some of the connections, silently.
    ("grpc.so_reuseport", 0),
]


def dial(address: str, access: Access = OPEN) -> grpc.Channel:
    """A channel to a server, for blocking calls; it shows the certificates that are there now."""
    if access.tls is None:
        return grpc.insecure_channel(address, options=CLIENT)
    return grpc.secure_channel(address, _credentials(access.tls.identity()), options=CLIENT)


def dial_async(address: str, access: Access = OPEN) -> grpc.aio.Channel:
    """As `dial`, for an event loop."""
    if access.tls is None:
        return grpc.aio.insecure_channel(address, options=CLIENT)
    return grpc.aio.secure_channel(address, _credentials(access.tls.identity()), options=CLIENT)


def bind(server: grpc.aio.Server, address: str, tls: TlsFolder | None) -> int:
    """Lets a server listen; with certificates, the newest are used for each new connection.

    Raises:
        RuntimeError: the address cannot be bound.
    """
    if tls is None:
        return int(server.add_insecure_port(address))
    newest = _Newest(tls)
    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(newest.identity), newest, require_client_authentication=True
    )
    return int(server.add_secure_port(address, credentials))


class _Newest:
    """Tells gRPC of certificates that have changed; called for each connection, on any thread."""

    def __init__(self, tls: TlsFolder) -> None:
        self.identity = tls.identity()
        self._tls = tls

    def __call__(self) -> object:
        identity = self._tls.identity()
        if identity is self.identity:
            return None
        self.identity = identity
        return _configuration(identity)


def _configuration(identity: Identity) -> object:
    pair = (identity.key, identity.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=identity.ca)


def _credentials(identity: Identity) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
