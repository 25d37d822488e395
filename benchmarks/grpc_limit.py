"""What gRPC takes to carry a round's bytes, and nothing else: the limit of the carrier `grpc`.

    python benchmarks/grpc_limit.py --rounds 20

One server process and two workers' processes, with the project's options of channels. In a round each worker
sends as many messages of one length as the 102 MB of ResNet-50 have partitions, and the server answers each
with one of the same length at once. Nobody looks at a payload, and none is copied but by gRPC itself: they
are `bytes` that are there before. A round lasts from the first worker's begin to the last one's end. Prints
one JSON line: the median round in seconds. Beside it `ps-lab bench roundtrip --carrier grpc` has ours.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection

import grpc
import grpc.aio

from ps_wire.access import channel

METHOD = "/benchmark.Limit/Data"
NUM_MESSAGES, MESSAGE_BYTES = 17, 102_228_128 // 17
WARM_ROUNDS = 3


class _Echo(grpc.GenericRpcHandler):
    """Answers each message with one of the same length."""

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(self._stream)

    async def _stream(self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        reply = bytes(MESSAGE_BYTES)
        async for _ in messages:
            await context.write(reply)


def _serve(ready: Connection) -> None:
    async def serve() -> None:
        server = grpc.aio.server(options=channel.SERVER)
        server.add_generic_rpc_handlers((_Echo(),))
        ready.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


def _work(port: int, turns: Connection) -> None:
    message = bytes(MESSAGE_BYTES)
    with channel.dial(f"127.0.0.1:{port}") as dialled:
        for _ in iter(turns.recv, None):
            began_s = time.monotonic()
            sent = itertools.repeat(message, NUM_MESSAGES)
            count = sum(1 for _ in dialled.stream_stream(METHOD)(sent))
            assert count == NUM_MESSAGES
            turns.send((began_s, time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()
    lines = []
    for _ in range(options.num_workers):
        line, far = context.Pipe()
        context.Process(target=_work, args=(port, far), daemon=True).start()
        lines.append(line)
    rounds_s = []
    for _ in range(WARM_ROUNDS + options.rounds):
        for line in lines:
            line.send(True)
        spans = [line.recv() for line in lines]
        rounds_s.append(max(end for _, end in spans) - min(began for began, _ in spans))
    for line in lines:
        line.send(None)
    print(json.dumps({"round_s": statistics.median(rounds_s[WARM_ROUNDS:]), "rounds": options.rounds}))


if __name__ == "__main__":
    main()
