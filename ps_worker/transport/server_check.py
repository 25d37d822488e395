"""A check that a list of servers is what a worker takes it for: each a shard, in order, none left out."""

from __future__ import annotations

import time
from collections.abc import Callable

from ps_wire.errors import ServerUnreachable, ShardMismatch
from ps_wire.frames.frame import check_protocol
from ps_wire.frames.service import Service
from ps_wire.v1 import shard_pb2
from ps_worker.process.waiting import waits


@waits("the servers to answer")
def check_servers(service: Service, connect_limit_s: float, say: Callable[[str], None]) -> None:
    """Asks every server which shard it is; one that does not answer is said to be waited for, at once.

    Raises:
        TlsRefused, TokenRefused: one lets nobody in who has not other certificates or another token.
        ServerUnreachable: one does not answer within the connect limit; its address is named.
        ShardMismatch: the list has another length or order than the shards.
        ProtocolMismatch: one speaks another version.
    """
    until_s = time.monotonic() + connect_limit_s
    servers = service.addresses
    for position, address in enumerate(servers):
        described = _describe(service, position, until_s, connect_limit_s, say)
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


def _describe(
    service: Service, shard: int, until_s: float, limit_s: float, say: Callable[[str], None]
) -> shard_pb2.DescribeReply:
    describe = service.shard(shard).Describe
    request = shard_pb2.DescribeRequest()
    try:
        try:
            reply: shard_pb2.DescribeReply = describe(request, timeout=_left_s(until_s))
        except ServerUnreachable:  # whoever is there says at once what is wrong; a server may still come
            if until_s > time.monotonic():
                say(
                    f"{service.addresses[shard]} does not answer yet: waiting for it, "
                    f"{limit_s:g} s in all (PS_CONNECT_LIMIT)"
                )
            reply = describe(request, timeout=_left_s(until_s), wait_for_ready=True)
    except ServerUnreachable as error:
        error.args = (f"{error.message} (within {limit_s:g} s, PS_CONNECT_LIMIT)",)
        raise
    return reply


def _left_s(until_s: float) -> float:
    return max(until_s - time.monotonic(), 0.1)
