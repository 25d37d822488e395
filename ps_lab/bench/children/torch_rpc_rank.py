"""One process of a parameter server over torch's RPC, as its tutorial on batch updates has it.

Rank 0 serves: it adds gradients up as they come, and the last one of a round steps the optimizer and answers
all that wait with the new weights. The others push their gradients and get the weights in one call.
The transport is TCP, without the shared memory that RPC would take on one host.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import rpc

from ps_lab.bench.children import optimizers
from ps_lab.bench.turns import answer, read_configuration, take_turns

SERVER = "server"
START_LIMIT_S = 300.0


class BatchServer:
    """Weights, and the gradients of the round under way."""

    def __init__(self, shapes: Sequence[Sequence[int]], *, workers: int, optimizer: str) -> None:
        self._parameters = [torch.nn.Parameter(torch.ones(tuple(shape))) for shape in shapes]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer = optimizers.make(optimizer, self._parameters)
        self._workers = workers
        self._arrived = 0
        self._lock = threading.Lock()  # guards all of this
        self._weights: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def update(self, gradients: Sequence[torch.Tensor]) -> torch.futures.Future[list[torch.Tensor]]:
        """Adds one worker's gradients; the future has the weights when all have come."""
        with self._lock, torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                assert parameter.grad is not None
                parameter.grad.add_(gradient)
            self._arrived += 1
            weights = self._weights
            if self._arrived == self._workers:
                self._step()
                weights.set_result([parameter.detach() for parameter in self._parameters])
        return weights

    def _step(self) -> None:
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.grad.div_(self._workers)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        self._arrived = 0
        self._weights = torch.futures.Future()


_served: list[BatchServer] = []


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def update(gradients: list[torch.Tensor]) -> torch.futures.Future[list[torch.Tensor]]:
    """Called by workers, runs in the server's process."""
    return _served[0].update(gradients)


def main() -> None:
    """Serves, or takes turns, until told no more."""
    configuration = read_configuration()
    torch.set_num_threads(1)
    rank, world_size = configuration["rank"], configuration["world_size"]
    shapes, optimizer = configuration["shapes"], configuration["optimizer"]
    if rank == 0:
        _served.append(BatchServer(shapes, workers=world_size - 1, optimizer=optimizer))
    options: Any = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8,
        rpc_timeout=START_LIMIT_S,
        init_method=f"tcp://{configuration['host']}:{configuration['port']}",
        _transports=["uv"],
        _channels=["basic"],
    )
    name = f"worker{rank}" if rank else SERVER
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        name, rank=rank, world_size=world_size, rpc_backend_options=options
    )
    if rank == 0:
        answer(ready=True)
        threading.Event().wait()  # the bench ends it
    gradients = [torch.full(tuple(shape), 1e-3) for shape in shapes]

    def turn() -> None:
        rpc.rpc_sync(SERVER, update, args=(gradients,))

    take_turns(turn)


if __name__ == "__main__":
    main()
