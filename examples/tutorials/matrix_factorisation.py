"""Matrix factorisation on a table of the servers: an algorithm without a model and without autograd.

    ps-lab launch --num-workers 2 --consistency ssp:2 examples/tutorials/matrix_factorisation.py

docs/tutorials/matrix-factorisation.md explains it.
"""

import argparse

import torch
from torch.utils.data import TensorDataset

import ps_worker as ps

USERS, ITEMS, RANK = 60, 40, 4


def ratings() -> TensorDataset:
    """Half of a matrix of rank 4, with noise: (user, item, rating)."""
    drawn = torch.Generator().manual_seed(3)
    whole = torch.randn(USERS, RANK, generator=drawn) @ torch.randn(RANK, ITEMS, generator=drawn)
    whole += 0.1 * torch.randn(USERS, ITEMS, generator=drawn)
    users, items = (torch.rand(USERS, ITEMS, generator=drawn) < 0.5).nonzero(as_tuple=True)
    return TensorDataset(users, items, whole[users, items])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.01)
    args = parser.parse_args()

    data = ratings()
    torch.manual_seed(0)
    start = {"users": 0.3 * torch.randn(USERS, RANK), "items": 0.3 * torch.randn(ITEMS, RANK)}
    with ps.connect() as worker:
        table = worker.table(start, optimizer=ps.SGD(lr=args.lr))
        loader = worker.loader(data, batch_size=args.batch_size)
        for epoch in worker.epochs(args.epochs):
            squares, samples = 0.0, 0
            for users, items, wanted in loader:
                factors = table.pull().result().values
                of_users, of_items = factors["users"][users], factors["items"][items]
                error = (of_users * of_items).sum(dim=1) - wanted
                squares, samples = squares + error.square().sum().item(), samples + len(wanted)
                gradients = {name: torch.zeros_like(factor) for name, factor in factors.items()}
                gradients["users"].index_add_(0, users, error[:, None] * of_items + args.decay * of_users)
                gradients["items"].index_add_(0, items, error[:, None] * of_users + args.decay * of_items)
                table.push(gradients)
            of_all = worker.all_reduce({"squares": squares, "samples": samples}, op="sum")
            if worker.rank == 0:
                print(f"epoch {epoch}: rmse {(of_all['squares'] / of_all['samples']) ** 0.5:.3f}")
        worker.finish()
        factors = table.pull().result().values
        users, items, wanted = data.tensors
        error = (factors["users"][users] * factors["items"][items]).sum(dim=1) - wanted
        print(f"worker {worker.rank}: rmse {error.square().mean().sqrt():.3f}")


if __name__ == "__main__":
    main()
