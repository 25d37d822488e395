"""A script with DistributedDataParallel, as many are.

    torchrun --nproc-per-node 2 examples/tutorials/ddp.py

docs/tutorials/from-ddp.md puts from_ddp.py beside it, line by line.
"""

import argparse

import torch
import torch.distributed as dist
from planted import Net, load, measure
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save", help="a file for the weights")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset, test = load()
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            with model.no_sync():
                (nn.functional.cross_entropy(model(inputs[:16]), labels[:16]) / 2).backward()
            loss = nn.functional.cross_entropy(model(inputs[16:]), labels[16:]) / 2
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    dist.barrier()
    if rank == 0:
        loss_of_test, accuracy = measure(model.module, test)
        print(f"loss {mean:.3f}, of the test {loss_of_test:.3f}, accuracy {accuracy:.3f}")
        if args.save:
            torch.save(model.module.state_dict(), args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
