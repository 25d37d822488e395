"""The digits under Hugging Face Accelerate. The lines marked `# ps` are all that the servers add.

    ps-lab launch --num-workers 2 examples/accelerate_digits.py --out runs/accelerate

Accelerate thinks that it is alone (`num_processes` is 1), so what it does for many processes is done here:
- `is_main_process` is true on every worker: write files and logs where `worker.is_first`.
- It does not shard data: `worker.loader` does. Such a loader is not prepared, so `accumulate` does not see
  its end: gradients of a last, incomplete accumulation are stepped in the next epoch.
- `gather` and `reduce` give back this worker's own tensors.
- Wrap first, prepare then, and with `device_placement=False`: otherwise prepare reads the optimizer's state
  from the servers and sets it there again.
- The job starts with rank 0's weights as they are in wrap: load a checkpoint's before it. All workers call
  `load_state` after it, for the optimizer's state; it must leave the weights alone.
- In groups of ranks (--group-size 2) `wrap` has the mean clipped. Start them with ps-worker or ps-lab: what
  torchrun sets would have Accelerate put DistributedDataParallel around the model.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digits import load
from safetensors.torch import load_model
from torch import nn

import ps_worker as ps


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--resume", help="an epoch_N directory to go on from")
    parser.add_argument("--out", help="for checkpoints and logs; default: a temporary directory")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    out = Path(args.out or tempfile.mkdtemp())

    set_seed(0)
    train, test = load()
    with ps.connect() as worker:  # ps
        first = worker.is_first  # ps: instead of accelerator.is_main_process
        accelerator = Accelerator(
            gradient_accumulation_steps=args.accumulate,
            log_with="tensorboard" if first else None,
            project_dir=out,
            device_placement=False,  # ps: see above
        )
        accelerator.init_trackers("logs")
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        model.to(accelerator.device)
        begin = 0
        if args.resume:
            load_model(model, f"{args.resume}/model.safetensors")  # ps: before wrap
            begin = int(Path(args.resume).name.removeprefix("epoch_"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.5, 0.99))
        grouped = worker.group_size > 1  # ps: after backward a rank of a group has its own gradient
        optimizer = worker.wrap(optimizer, model, clip_grad_norm=1.0 if grouped else None)  # ps
        loader = worker.loader(train, batch_size=args.batch_size, shuffle=True, seed=0)  # ps
        steps = args.epochs * len(loader) // args.accumulate
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps)
        worker.register_state("scheduler", scheduler)  # ps
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        if args.resume:
            accelerator.register_load_state_pre_hook(lambda models, _: models.clear())  # ps
            accelerator.load_state(args.resume)

        for epoch in worker.epochs(args.epochs, start=begin):  # ps
            model.train()
            for batch in loader:
                images, labels = (each.to(accelerator.device) for each in batch)
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(images), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients and not grouped:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
            accelerator.log({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}, step=epoch)
            if first:
                accelerator.save_state(out / f"epoch_{epoch + 1}")
        worker.finish()  # ps: all have finished: these are the final weights

        model.eval()
        images, labels = (each.to(accelerator.device) for each in test.tensors)
        with torch.no_grad():
            accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
        accelerator.log({"accuracy": accuracy}, step=args.epochs)
        accelerator.end_training()
        if first:
            print(f"test accuracy {accuracy:.4f}, files in {out}")


if __name__ == "__main__":
    main()
