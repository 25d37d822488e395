"""A parameter server of one's own, over torch.distributed.rpc: rank 0 is the server, the others train.

    torchrun --nproc-per-node 3 examples/tutorials/torch_rpc.py

docs/tutorials/from-torch-rpc.md puts from_torch_rpc.py beside it, line by line.
"""

import argparse
import os
import threading

import torch
from planted import Net, load, measure
from torch import nn
from torch.distributed import rpc
from torch.utils.data import DataLoader, DistributedSampler


class Server:
    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.lock = threading.Lock()

    def weights(self) -> list[torch.Tensor]:
        with self.lock:
            return [parameter.detach().clone() for parameter in self.model.parameters()]

    def push(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
        return self.weights()


def train(server: rpc.RRef, rank: int, workers: int, epochs: int) -> None:
    dataset, _ = load()
    model = Net()
    copy_into(model, server.rpc_sync().weights())
    sampler = DistributedSampler(dataset, num_replicas=workers, rank=rank)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(dataset, batch_size=32, sampler=sampler):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            copy_into(model, server.rpc_sync().push(gradients))


@torch.no_grad()
def copy_into(model: nn.Module, weights: list[torch.Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(weight)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc("server" if rank == 0 else f"worker-{rank - 1}", rank=rank, world_size=world)
    if rank == 0:
        server = rpc.RRef(Server())
        workers = range(world - 1)
        running = [
            rpc.rpc_async(f"worker-{worker}", train, (server, worker, len(workers), args.epochs))
            for worker in workers
        ]
        for one in running:
            one.wait()
        print(f"accuracy {measure(server.local_value().model, load()[1])[1]:.3f}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
