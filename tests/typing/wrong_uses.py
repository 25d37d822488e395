"""Uses that `mypy --strict` must report, one in each line that is marked: see `test_user_script`."""

from typing import assert_type

import torch
from torch import nn

import ps_worker as ps


def wrong(worker: ps.Worker, optimizer: ps.WrappedOptimizer, loader: ps.Loader, table: ps.Table) -> None:
    model = nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ps.connect("127.0.0.1:50051")  # wrong: keywords only
    ps.connect(num_workers=2.5)  # wrong
    ps.connect(workers=2)  # wrong
    worker.wrap(model, sgd)  # wrong: the other way round
    worker.wrap(sgd, model, overlap="on")  # wrong
    worker.wrap(sgd, model, weight="batches")  # wrong
    worker.wrap(sgd, model, clip_grad_norm="1")  # wrong
    worker.table({"w": [1.0]}, optimizer=ps.SGD())  # wrong
    worker.table({"w": torch.zeros(1)}, optimizer=sgd)  # wrong
    worker.loader([1, 2, 3], batch_size="3")  # wrong
    worker.shard([1, 2, 3])  # wrong
    worker.log(loss="much")  # wrong
    worker.epochs("3")  # wrong
    worker.rank = "0"  # wrong
    print(worker.stats().steps)  # wrong
    optimizer.step(3)  # wrong
    optimizer.no_sync(True)  # wrong
    optimizer.overlaps = True  # wrong
    optimizer.zero_grad("all")  # wrong
    optimizer.load_state_dict([])  # wrong
    optimizer.add_param_group([])  # wrong
    loader.set_epoch("1")  # wrong
    loader.load_state_dict(3)  # wrong
    table.push([torch.zeros(1)])  # wrong
    assert_type(table.pull().result().version, str)  # wrong
    ps.SGD(lr="0.1")  # wrong
    ps.BucketOptions(bucket_bytes=0.5)  # wrong
    ps.Adamm()  # wrong
    print(ps.PsError("x").code)  # wrong
