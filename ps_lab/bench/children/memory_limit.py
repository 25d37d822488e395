"""The limit that memory sets: a round's sums and optimizer steps by one process, all cores, piece by piece.

Legend: W = workers, E = elements of a piece. The arithmetic is law 1's: the mean of W gradients in rank
order, each operation rounded once, then the optimizer. Under BSP the step writes into the other half of
double-buffered weights: SGD out of place, others copy and step in place. Under other models each gradient is
a step of its own, in place, and its worker's copy of the new weights is made. The kernel alone is a step in
place with gradients that are there. In one pass all of a BSP round is done by the compiled kernels, from one
half into the other: each byte is read and written once, what a round needs at least.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from ps_lab.bench.children import optimizers
from ps_lab.bench.turns import read_configuration, take_turns
from ps_wire.process import kernels

PIECE_ELEMENTS = 1 << 20  # 4 MiB of float32
ONE_PASS_ELEMENTS = 1 << 18  # 1 MiB: a mean stays in a core's cache until its step
BETAS, EPS = (0.9, 0.999), 1e-8  # torch's of Adam and AdamW
DECAY = {"adam": 0.0, "adamw": 0.01}  # torch's


class _Scratch(threading.local):
    mean: torch.Tensor | None = None  # of this thread


class MemoryLimit:
    """A round, without processes."""

    def __init__(
        self,
        *,
        parameters: int,
        workers: int,
        optimizer: str,
        bsp: bool,
        alone: bool = False,
        one_pass: bool = False,
    ) -> None:
        """Allocates and touches all memory.

        Args:
            parameters: elements of the weights.
            workers: W.
            optimizer: by the name of the command line.
            bsp: one step on the mean, nothing copied; else a step and a copy per worker.
            alone: the optimizer's kernel and nothing else.
            one_pass: under BSP, by the compiled kernels: they are there, and know the optimizer.
        """
        self._bsp = bsp
        self._do = self._step_alone if alone else self._step_mean if bsp else self._step_each
        self._do = self._step_one_pass if one_pass else self._do
        self._optimizer = optimizer
        self.halves = [torch.ones(parameters) for _ in range(2 if bsp else 1)]
        self._gradients = [torch.full((parameters,), 1e-3) for _ in range(workers)]
        self._copies = [torch.ones(parameters) for _ in range(0 if bsp else workers)]
        self._moments = [torch.zeros(parameters) for _ in range(2 if one_pass and optimizer in DECAY else 0)]
        size = ONE_PASS_ELEMENTS if one_pass else PIECE_ELEMENTS
        self._spans = [slice(start, min(start + size, parameters)) for start in range(0, parameters, size)]
        self._pieces = [torch.nn.Parameter(self.halves[0][span]) for span in self._spans]
        self._steps = [optimizers.make(optimizer, [piece]) for piece in self._pieces]
        self._scratch = _Scratch()
        self._version = 0

    def round(self, map_pieces: Callable[[Callable[[int], None], range], object]) -> None:
        """One round; `map_pieces` calls a function with every index, as `map` does, and waits."""
        map_pieces(self._do, range(len(self._spans)))
        self._version += self._bsp

    def _halves(self, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """A piece of the weights before this round, and where it is written."""
        return self.halves[self._version & 1][span], self.halves[(self._version + 1) & 1][span]

    @torch.no_grad()
    def _step_mean(self, index: int) -> None:
        span = self._spans[index]
        before, after = self._halves(span)
        mean = self._mean(span)
        if self._optimizer == "sgd":
            torch.add(before, mean, alpha=-optimizers.LEARNING_RATE, out=after)
        else:
            self._pieces[index].data = after.copy_(before)
            self._step(index, mean)

    def _step_one_pass(self, index: int) -> None:
        built = kernels.KERNELS
        assert built is not None
        span = self._spans[index]
        before, after = self._halves(span)
        gradients = [gradient[span] for gradient in self._gradients]
        if self._optimizer == "sgd":
            built.mean_step(gradients, before, optimizers.LEARNING_RATE, after)
            return
        mean = self._room(before.numel())
        built.mean(gradients, mean)
        first, second = (moment[span] for moment in self._moments)
        count, (beta1, beta2) = self._version + 1, BETAS
        piece = kernels.AdamPieces(
            gradients=[mean.data_ptr()],
            weights=[before.data_ptr()],
            outs=[after.data_ptr()],
            firsts=[first.data_ptr()],
            seconds=[second.data_ptr()],
            sizes=[before.numel()],
        )
        built.adam(
            piece,
            first_share=1 - beta1,
            second_kept=beta2,
            second_share=1 - beta2,
            rate=optimizers.LEARNING_RATE / (1 - beta1**count),
            root=math.sqrt(1 - beta2**count),
            eps=EPS,
            l2=0.0,
            keep=1 - optimizers.LEARNING_RATE * DECAY[self._optimizer],
        )

    @torch.no_grad()
    def _step_each(self, index: int) -> None:
        span = self._spans[index]
        for gradient, copy in zip(self._gradients, self._copies, strict=True):
            self._step(index, gradient[span])
            copy[span].copy_(self.halves[0][span])

    @torch.no_grad()
    def _step_alone(self, index: int) -> None:
        self._step(index, self._gradients[0][self._spans[index]])

    def _step(self, index: int, gradient: torch.Tensor) -> None:
        self._pieces[index].grad = gradient
        self._steps[index].step()

    def _mean(self, span: slice) -> torch.Tensor:
        """Shape (E,), valid until this thread's next call."""
        first, *others = [gradient[span] for gradient in self._gradients]
        if not others:
            return first
        out = self._room(first.numel())
        torch.add(first, others[0], out=out)
        for gradient in others[1:]:
            out.add_(gradient)
        return out.div_(len(self._gradients))

    def _room(self, elements: int) -> torch.Tensor:
        """Shape (E,), valid until this thread's next call."""
        if self._scratch.mean is None:
            self._scratch.mean = torch.empty(PIECE_ELEMENTS)
        room: torch.Tensor = self._scratch.mean[:elements]
        return room


def main() -> None:
    """Takes turns until told no more."""
    configuration = read_configuration()
    torch.set_num_threads(1)
    limit = MemoryLimit(
        parameters=configuration["parameters"],
        workers=configuration["workers"],
        optimizer=configuration["optimizer"],
        bsp=configuration["bsp"],
        alone=configuration["alone"],
        one_pass=configuration["one_pass"],
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        take_turns(lambda: limit.round(lambda step, pieces: list(pool.map(step, pieces))))


if __name__ == "__main__":
    main()
