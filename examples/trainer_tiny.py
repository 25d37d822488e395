"""A tiny GPT-2, made from its config, under the Hugging Face Trainer. `# ps` marks what the servers add.

    ps-lab launch --num-workers 2 examples/trainer_tiny.py --out runs/trainer

The Trainer makes the optimizer, the scheduler, clipping, accumulation, checkpoints and logs as always. What
says "I am the main process" is true on every worker: only rank 0 is told to save and report, and
`load_best_model_at_end` is left out, for it changes the weights of one worker and not the servers'. In groups
of ranks (--group-size 2) the mean is clipped, by `wrap`.
"""

import argparse
import tempfile
from pydoc_data.topics import topics
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

import ps_worker as ps

CONTEXT = 32  # characters that a prediction may look back
CLIP = 1.0  # largest norm of a gradient


class Text(Dataset):
    """`count` pieces of Python's own documentation, one number per character."""

    def __init__(self, count: int) -> None:
        text = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
        self.text = torch.tensor(list(text[: count * CONTEXT])).view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.text[index], "labels": self.text[index]}


class ServedTrainer(Trainer):
    """A Trainer that is one worker of a job."""

    def __init__(self, worker: ps.Worker, **options: Any) -> None:
        super().__init__(**options)
        self.worker = worker
        # Else Accelerate reads the optimizer's state from the servers and sets it there again.
        self.accelerator.device_placement = False

    def create_optimizer(self, *model: Any) -> torch.optim.Optimizer:
        """A checkpoint's weights are loaded by now: those of rank 0 start the job."""
        clip = CLIP if self.worker.group_size > 1 else None
        self.optimizer = self.worker.wrap(super().create_optimizer(*model), self.model, clip_grad_norm=clip)
        return self.optimizer

    def get_train_dataloader(self) -> ps.Loader:
        return self.worker.loader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            seed=self.args.seed,
            collate_fn=self.data_collator,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--resume", help="a checkpoint-N directory to go on from")
    parser.add_argument("--out", help="for checkpoints and logs; default: a temporary directory")
    args = parser.parse_args()
    out = args.out or tempfile.mkdtemp()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    set_seed(0)
    config = GPT2Config(
        vocab_size=128,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with ps.connect() as worker:  # ps
        first = worker.is_first  # ps
        trainer = ServedTrainer(
            worker,  # ps
            model=GPT2LMHeadModel(config),
            train_dataset=Text(args.samples),
            args=TrainingArguments(
                out,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=args.batch_size,
                gradient_accumulation_steps=args.accumulate,
                learning_rate=args.lr,
                lr_scheduler_type="cosine",
                warmup_steps=10,
                max_grad_norm=CLIP if worker.group_size == 1 else 0.0,  # ps: see `create_optimizer`
                save_strategy="epoch" if first else "no",  # ps
                report_to="tensorboard" if first else "none",  # ps
                logging_steps=10,
                logging_first_step=True,  # a short run may have fewer than 10
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=args.resume)
        worker.finish()  # ps: all have finished: these are the final weights
        if first:
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, files in {out}")


if __name__ == "__main__":
    main()
