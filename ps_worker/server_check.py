"""Whether a list of servers is what a worker takes it for: each a shard, in its place, none left out."""

from __future__ import annotations

import time

from ps_wire.errors import PsError, ShardMismatch
from ps_wire.frame import check_protocol
from ps_wire.service import Service
from ps_wire.v1 import shard_pb2


def check_servers(service: Service, connect_limit_s: float) -> None:
    """Asks every server which shard it is.

    Raises:
        ServerUnreachable: one does not answer within the connect limit; its address is named.
        ShardMismatch: the list has another length or order than the shards.
        ProtocolMismatch: one speaks another version.
    """
    until_s = time.monotonic() + connect_limit_s
    servers = service.addresses
    for position, address in enumerate(servers):
        described = _describe(service, position, until_s, connect_limit_s)
        check_protocol(described.protocol)
        if described.num_shards != len(servers):
            raise ShardMismatch(
                f"--servers lists {len(servers)} address{'es' * (len(servers) > 1)}; {address} is one of "
                f"{described.num_shards} shards",
                expected=described.num_shards,
                got=len(servers),
            )
        if described.shard != position:
            raise ShardMismatch(
                f"--servers lists {address} in place {position}; it is shard {described.shard}: "
                "list the servers in shard order",
                expected=described.shard,
                got=position,
            )


def _describe(service: Service, shard: int, until_s: float, limit_s: float) -> shard_pb2.DescribeReply:
    left_s = max(until_s - time.monotonic(), 0.1)
    try:
        reply: shard_pb2.DescribeReply = service.shard(shard).Describe(
            shard_pb2.DescribeRequest(), timeout=left_s, wait_for_ready=True
        )
    except PsError as error:
        error.args = (f"{error.message} (within {limit_s:g} s, PS_CONNECT_LIMIT)",)
        raise
    return reply
