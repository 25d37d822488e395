"""Costs of a model's blocks: time, memory and parameters of each, and the cheapest cut by one of them.

Blocks are measured one after the other, on copies, with one micro-batch: the model and the generators of
random numbers stay as they are. Blocks on `meta` are measured with drawn weights.

It must not know ranks or sockets.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from ps_wire.errors import PipelineError
from ps_worker.pipeline.blocks import Blocks
from ps_worker.pipeline.partition import cheapest, partition

BY = ("time", "memory", "parameters")
WARM_UP, REPEATS = 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """The cost of one block; times and bytes of activations are of one micro-batch, and 0 where none was run.

    Attributes:
        name: of the block.
        parameters: how many numbers they are; a shared one counts in each of its blocks.
        parameter_bytes: of them.
        activation_bytes: kept from forward to backward.
        sent_bytes: passed on to the next block.
        forward_s: the median.
        backward_s: the median.
    """

    name: str
    parameters: int
    parameter_bytes: int
    activation_bytes: int = 0
    sent_bytes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0


def sizes_of(blocks: Blocks, model: nn.Module) -> tuple[BlockCost, ...]:
    """Of parameters alone; nothing is run."""
    parameters = dict(model.named_parameters())
    every = []
    for index, name in enumerate(blocks.names):
        own = [parameters[it] for it in blocks.parameter_names(index, index + 1)]
        numbers = sum(it.numel() for it in own)
        every.append(BlockCost(name=name, parameters=numbers, parameter_bytes=sum(it.nbytes for it in own)))
    return tuple(every)


def costs_of(
    blocks: Blocks,
    model: nn.Module,
    example: Sequence[torch.Tensor],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[BlockCost, ...]:
    """All costs, by forward and backward of each block.

    Args:
        blocks: of the model.
        model: whose blocks they are.
        example: the model's inputs, of one micro-batch, on the device that is measured.
        clock: seconds.

    Raises:
        PipelineError: a block does not run with what comes to it; it is named.
    """
    values: tuple[Any, ...] = tuple(it.clone() for it in example)  # a view keeps the whole batch
    device = values[0].device
    every = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        for index, size in enumerate(sizes_of(blocks, model)):
            try:
                block = _copied(blocks.stage(index, index + 1), device)
                values, cost = _profiled(block, values, size, clock)
            except PipelineError:
                raise
            except Exception as error:
                raise PipelineError(
                    f"block {size.name} does not run with the example: {type(error).__name__}: {error}",
                    block=size.name,
                ) from error
            every.append(cost)
    every[-1] = replace(every[-1], sent_bytes=0)
    return tuple(every)


def cheapest_cuts(
    costs: Sequence[BlockCost],
    stages: int,
    by: str,
    *,
    in_flight: Sequence[int],
    optimizer_states: int = 0,
) -> tuple[int, ...]:
    """The first block of each stage, so that the largest stage is as small as it can be.

    Args:
        costs: of the blocks.
        stages: how many.
        by: one of `BY`.
        in_flight: of each stage, how many micro-batches' activations it keeps at once.
        optimizer_states: numbers that the optimizer keeps per parameter in this process, and not on servers.

    Raises:
        PipelineError: there are more stages than blocks, or there is no such cost.
    """
    if by == "time":
        return partition([it.forward_s + it.backward_s for it in costs], stages)
    if by == "parameters":
        return partition([it.parameters for it in costs], stages)
    if by == "memory":
        return cheapest(
            lambda begin, end, stage: memory_of(costs[begin:end], in_flight[stage], optimizer_states),
            len(costs),
            stages,
        )
    raise PipelineError(f"stages are cut by {', '.join(BY)} or at names, got {by!r}")


def named_cuts(blocks: Blocks, stages: int, names: Sequence[str]) -> tuple[int, ...]:
    """The first block of each stage, of which all but the first have been named.

    Raises:
        PipelineError: there is no such block, or they are not in order, or too few or too many.
    """
    cuts = (0, *(blocks.index(name) for name in names))
    if len(cuts) != stages:
        raise PipelineError(f"{stages} stages begin at {stages - 1} names behind the first, got {len(names)}")
    for before, behind, name in zip(cuts, cuts[1:], names, strict=False):
        if behind <= before:
            raise PipelineError(
                f"stages follow each other as blocks do: {name!r} is block {behind}, and the stage before it "
                f"begins with block {before}",
                name=name,
            )
    return cuts


def memory_of(costs: Iterable[BlockCost], in_flight: int, optimizer_states: int = 0) -> int:
    """Bytes of a stage: parameters, their gradients, the optimizer's state, activations."""
    return sum(it.parameter_bytes * (2 + optimizer_states) + it.activation_bytes * in_flight for it in costs)


def _copied(block: nn.Module, device: torch.device) -> nn.Module:
    """With weights of its own on the device, drawn where the model has none."""
    mine = copy.deepcopy(block)
    drawn = [it for it in (*mine.parameters(), *mine.buffers()) if it.is_meta]
    mine = mine.to_empty(device=device) if drawn else mine.to(device)
    if drawn:
        with torch.no_grad():
            for it in (*mine.parameters(), *mine.buffers()):
                if it.is_floating_point():
                    it.uniform_(
                        0.01, 0.02
                    )  # no NaN, no denormal numbers, which are slow, and no square root of < 0
                else:
                    it.zero_()
    return mine


def _profiled(
    block: nn.Module, inputs: tuple[Any, ...], size: BlockCost, clock: Callable[[], float]
) -> tuple[tuple[Any, ...], BlockCost]:
    """Gives what a block passes on, and its cost."""
    forwards, backwards = [], []
    outputs: tuple[Any, ...] = ()
    for turn in range(WARM_UP + REPEATS):
        given = [it.detach().requires_grad_(it.requires_grad) for it in inputs]
        began = _now(clock, inputs)
        made = block(*given)
        between = _now(clock, inputs)
        outputs = _tensors(made)
        roots = [it for it in outputs if it.requires_grad and it.grad_fn is not None]
        gradients = [torch.ones_like(it) for it in roots]
        ready = _now(clock, inputs)
        if roots:
            torch.autograd.backward(roots, gradients)
        ended = _now(clock, inputs)
        if turn >= WARM_UP:
            forwards.append(between - began)
            backwards.append(ended - ready)
    cost = replace(
        size,
        activation_bytes=_kept_bytes(block, inputs),
        sent_bytes=sum(it.nbytes for it in outputs),
        forward_s=median(forwards),
        backward_s=median(backwards),
    )
    return tuple(it.detach().requires_grad_(it.requires_grad) for it in outputs), cost


def _now(clock: Callable[[], float], inputs: Iterable[torch.Tensor]) -> float:
    for it in inputs:
        if it.is_cuda:
            torch.cuda.synchronize(it.device)
    return clock()


def _tensors(made: Any) -> tuple[torch.Tensor, ...]:
    every = made.values() if isinstance(made, dict) else made if isinstance(made, tuple | list) else (made,)
    return tuple(it for it in every if isinstance(it, torch.Tensor))


def _kept_bytes(block: nn.Module, inputs: Iterable[torch.Tensor]) -> int:
    """Of what autograd keeps of a forward without weights; outputs count where they are inputs."""
    kept: dict[int, torch.Tensor] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept[value.untyped_storage().data_ptr()] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        made = block(*(it.detach().requires_grad_(it.requires_grad) for it in inputs))
    for it in (*block.parameters(), *block.buffers(), *_tensors(made)):
        kept.pop(it.untyped_storage().data_ptr(), None)
    return sum(it.untyped_storage().nbytes() for it in kept.values())
