"""Options of every gRPC channel and server, both ends in one place: they are one setting.

A client that pings more often than the server allows is cut off with GOAWAY `too_many_pings`, so the
two lists below change together. Times are in milliseconds, as gRPC takes them.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 8 << 20  # a 4 MiB partition with its header is over gRPC's default of 4 MiB

_BOTH: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The default of 16 KiB costs a header and a copy per 16 KiB of a 4 MiB partition.
    ("grpc.http2.max_frame_size", 1 << 20),
    # Without calls in flight, a vanished peer is still noticed.
    ("grpc.keepalive_permit_without_calls", 1),
]

CLIENT: list[tuple[str, int]] = [
    *_BOTH,
    # A shard that comes back has another address: with the defaults it is found after 21 s, with
    # these after 0.1 s (clean restart) or 1.8 s (the node vanished without FIN).
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),  # this is also the connect timeout
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    # Every connection of a worker has its own transport: one slow stream never holds up another.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER: list[tuple[str, int]] = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    # Two servers on one port would each get some of the connections, silently.
    ("grpc.so_reuseport", 0),
]
