"""The digits under PyTorch Lightning: a strategy makes each process a worker of the job.

    ps-lab launch --num-workers 2 examples/lightning_digits.py --out runs/lightning

Module, scheduler, clipping, checkpoints and TensorBoard are plain Lightning; the strategy is all that the
servers add. `gradient_clip_val` clips each worker's own gradient. In groups of ranks (--group-size 2) the
strategy has the mean clipped.
"""

import argparse
import logging
import os
import tempfile
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from digits import load
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader

import ps_worker as ps


class ParameterServerStrategy(SingleDeviceStrategy):
    """One worker of a job: `fit` joins it, trains, waits for all and leaves; only rank 0 writes files.

    Workers do not talk to each other. So `barrier` waits for nobody, and `broadcast` and `reduce` give back
    what they get: a metric is of this worker, with sync_dist=True, too. Each validates on all the data: under
    bsp all find the same, under ssp and asp EarlyStopping may stop one before another.
    """

    def __init__(self, device: str = "cpu", clip: float | None = None, **settings: Any) -> None:
        super().__init__(device)
        self.clip = clip  # of the mean
        self.settings = settings  # of ps.connect; without them it reads the environment
        self.worker: ps.Worker | None = None

    is_global_zero = property(lambda self: self.global_rank == 0)

    def setup_environment(self) -> None:
        super().setup_environment()
        if self.lightning_module.trainer.training:  # to validate, test and predict needs no job
            self.worker = ps.connect(**self.settings)
            self.world_size = self.worker.num_workers * self.worker.group_size
            self.global_rank = self.worker.rank * self.worker.group_size + self.worker.group_rank
            rank_zero_only.rank = self.global_rank  # loggers ask this, and not the strategy

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)  # a checkpoint's weights are loaded by now: rank 0's start the job
        wrap = partial(self.worker.wrap, clip_grad_norm=self.clip)
        self.optimizers = [wrap(each, self.lightning_module) for each in self.optimizers]

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """For a checkpoint, which rank 0 of a group writes, and reads from the servers."""
        return super().optimizer_state(optimizer) if self.worker.group_rank == 0 else {}

    def process_dataloader(self, dataloader: object) -> object:
        if self.lightning_module.trainer.training:  # every worker validates on all the data
            dataloader = self.worker.shard(dataloader)
            dataloader.sampler = dataloader  # Lightning calls sampler.set_epoch() before each epoch
        return dataloader

    def all_gather(self, tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
        if self.world_size == 1:
            return tensor
        raise ps.UsageError("workers of a parameter server cannot gather tensors from each other")

    def on_train_end(self) -> None:
        self.worker.finish()  # all have finished: the module has the final weights

    def on_exception(self, exception: BaseException) -> None:
        if self.worker:
            self.worker.leave(f"{type(exception).__name__}: {exception}")

    def teardown(self) -> None:
        super().teardown()
        if self.worker:
            self.worker.leave()


class Digits(pl.LightningModule):
    def __init__(self, lr: float, epochs: int) -> None:
        super().__init__()
        self.lr, self.epochs = lr, epochs
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, betas=(0.5, 0.99))
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--resume", help="a checkpoint to go on from")
    parser.add_argument("--out", help="for checkpoints and logs; default: a temporary directory")
    args = parser.parse_args()
    out = args.out or tempfile.mkdtemp()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)

    pl.seed_everything(0, verbose=False)
    train, test = load()
    grouped = int(os.environ.get("PS_GROUP_SIZE", "1")) > 1  # ps: after backward a rank has its own gradient
    model, validation = Digits(args.lr, args.epochs), DataLoader(test, batch_size=len(test))
    trainer = pl.Trainer(
        strategy=ParameterServerStrategy(clip=1.0 if grouped else None),  # ps
        max_epochs=args.epochs,
        gradient_clip_val=None if grouped else 1.0,
        logger=TensorBoardLogger(out, name="", version="logs"),
        callbacks=[ModelCheckpoint(f"{out}/checkpoints", save_top_k=-1), LearningRateMonitor()],
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    trainer.fit(model, batches, validation, ckpt_path=args.resume)
    (metrics,) = trainer.validate(model, validation, verbose=False)
    if trainer.is_global_zero:
        print(f"test accuracy {metrics['accuracy']:.4f}, files in {out}")


if __name__ == "__main__":
    main()
