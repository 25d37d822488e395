"""A training script for a pipeline of two stages: says what it came to, for whoever checks the arithmetic.

Arguments: folder, steps, then words that change what it does; one that begins with `on:` names a device for
each stage. `autocast` computes in bfloat16; `views` has gradients in the memory that is pushed.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import torch

import ps_worker as ps

LIMIT_S = 60.0
MICROBATCHES = 4
BATCH = 16
LOSS = torch.nn.functional.mse_loss


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("stages say nothing to each other that is pickled: their shapes are known")


torch.distributed.send_object_list = torch.distributed.recv_object_list = _refused


def build() -> torch.nn.Module:
    torch.manual_seed(7)
    blocks = [torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.Tanh()) for _ in range(4)]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(24, 3))


def batch_of(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(BATCH, 24, generator=generator), torch.randn(BATCH, 3, generator=generator)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    half = output.dtype is torch.bfloat16
    assert torch.is_autocast_enabled("cpu") is half, "a loss is a part of the forward"
    return LOSS(output, target)


def autocast(on: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


def by_micro_batches(
    model: torch.nn.Module, inputs: torch.Tensor, target: torch.Tensor, *, half: bool = False
) -> float:
    """The gradients of a batch in one process, in the order of a pipeline; gives the loss."""
    found = []
    for part, wanted in zip(inputs.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        with autocast(half):
            loss = loss_of(model(part), wanted)
        loss.backward()
        found.append(loss.item())
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.div_(MICROBATCHES)
    return sum(found) / len(found)


def watch(model: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Backward runs outside of autocast, and into the gradients that it gives, by the parameter's id."""
    lay: dict[int, torch.Tensor] = {}

    def look(parameter: torch.Tensor) -> None:
        assert not torch.is_autocast_enabled("cpu"), "autocast is for forwards"
        assert lay.get(id(parameter), parameter.grad) is parameter.grad, "there are two gradients"

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    return lay


def hold(model: torch.nn.Module, folder: Path) -> None:
    """Each step's last backward waits until the stage behind has pushed, and has its weights of the next."""
    calls = 0

    def wait(_: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        until_s = time.monotonic() + LIMIT_S
        while calls % MICROBATCHES == 0 and not (folder / f"stepped {calls // MICROBATCHES}").exists():
            assert time.monotonic() < until_s, "the stage behind waits for this one"
            time.sleep(0.001)

    next(model.parameters()).register_hook(wait)


def die_in_third_schedule(model: torch.nn.Module) -> None:
    """The process of the last stage is killed between two micro-batches."""
    calls = itertools.count(1)

    def count(_: torch.Tensor) -> None:
        if next(calls) == 2 * MICROBATCHES + 2:
            os.kill(os.getpid(), signal.SIGKILL)

    list(model.parameters())[-1].register_hook(count)


def main() -> None:
    folder, steps, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    named = next((word.removeprefix("on:") for word in words if word.startswith("on:")), "cpu,cpu,cpu")
    with ps.connect() as worker:
        device = torch.device(named.split(",")[worker.group_rank])
        model, parts = build(), ()
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        half, views = "autocast" in words, "views" in words
        if worker.group_size > 1:
            with autocast(half):
                pipe = worker.pipeline(
                    model,
                    microbatches=MICROBATCHES,
                    example=batch_of(0, 0)[0].to(device),
                    cuts=["1.0"] if worker.rank and "cut elsewhere" in words else None,
                )
            optimizer = worker.wrap(inner, pipe, gradient_as_bucket_view=views)
            parts = pipe.cuts
        else:
            optimizer = worker.wrap(inner, model)
        held = "hold" in words and worker.group_size > 1
        if held and worker.group_rank == 0:
            hold(model, folder)
        lay = watch(model)
        print("started", worker.rank, worker.group_rank, flush=True)
        dies = worker.rank == worker.group_rank == 1
        if dies and "dies in its schedule" in words:
            die_in_third_schedule(model)
        draws = torch.Generator().manual_seed(worker.group_rank)  # each step draws once
        worker.register_state("draws", draws)
        steps += worker.step if "more" in words else 0
        losses = []
        while worker.step < steps:
            optimizer.zero_grad(set_to_none=not views)
            batch = [it.to(device) for it in batch_of(worker.rank, worker.step)]
            lay |= {id(it): it.grad for it in model.parameters() if views and it.grad is not None}
            with autocast(half):
                losses.append(
                    pipe.step(*batch, loss_fn=loss_of).item() if parts else by_micro_batches(model, *batch)
                )
            torch.rand(1, generator=draws)
            if "print" in words:
                print("step", len(losses), flush=True)
            if dies and len(losses) == 3 and "dies before its push" in words:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            if held and worker.group_rank == 1:
                (folder / f"stepped {worker.step}").touch()
        if worker.group_rank == 0 and "bsp" in words:
            assert worker.stats().spread == 0
        if "leaves" in words:
            return
        worker.finish()
        state = pipe.state_dict() if parts else model.state_dict()
        torch.save(
            {
                "losses": losses,
                "state": state,
                "cuts": parts,
                "draw": torch.rand(1, generator=draws).item(),
                "devices": {it.device for it in state.values()},
            },
            folder / f"{worker.rank}-{worker.group_rank}.pt",
        )


if __name__ == "__main__":
    main()
