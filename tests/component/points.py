"""A training script that is met at one point of a step after another, by a rollback or an eviction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import ps_worker as ps
from tests.inside import cycle_of, link_of, sender_of
from tests.until import LIMIT_S, until

EPOCHS, SAMPLES, BATCH, WIDTH = 2, 96, 4, 96

IN_A_STEP = (
    "batch read",
    "batch",
    "first forward",
    "last forward",
    "forward done",
    "last backward",
    "first backward",
    "backward done",
    "gradients sent",
    "weights asked for",
    "step done",
    "gradients cleared",
    "evaluation",
)
AT_THE_END = ("before finish", "evaluation before finish")


class Points:
    """Has something happen to the job where all of its workers are at the same point."""

    def __init__(self, points: Sequence[str], *, workers: int, happens: Callable[[], None]) -> None:
        """`happens` is called once for each of the points, in this order, while all workers are there."""
        self.first = LIMIT_S  # the step from which on they are met
        self.met: list[str] = []
        self._happens = happens
        self._left = [list(points) for _ in range(workers)]
        self._meet = threading.Barrier(workers, timeout=LIMIT_S)

    def at(self, worker: ps.Worker, point: str) -> None:
        """The worker is there: if it is the next one, waits for the others, and until this one has heard."""
        left, link = self._left[worker.rank], link_of(worker)
        if (
            left[:1] != [point]
            or worker.step < self.first
            or link.rejoiner.undone
            or link.exchanges.failure is not None
        ):
            return
        left.pop(0)
        if self._meet.wait() == 0:
            self._happens()
            self.met.append(point)
        self._meet.wait()
        (exchange, *_) = link.exchanges
        until(lambda: exchange.in_flight.evicted, "this worker has heard")


class _At(nn.Module):
    """Says when forward and backward are here."""

    def __init__(self, at: Callable[[str], None], name: str) -> None:
        super().__init__()
        self._at, self._name = at, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._at(f"{self._name} forward" if self.training else "evaluation")
        if x.requires_grad:
            x.register_hook(lambda _: self._at(f"{self._name} backward"))
        return x


class _Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, at: Callable[[str], None]) -> None:
        self._at = at
        self._drawn = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        self._at("batch read")
        return self._drawn[index]


def _half(at: Callable[[str], None]) -> nn.Module:
    """Two layers and buffers; weights are large enough that each module waits for its own."""
    layers = (
        nn.Linear(WIDTH, WIDTH, bias=False),
        _At(at, "first"),
        nn.BatchNorm1d(WIDTH, affine=False),
        nn.Linear(WIDTH, WIDTH, bias=False),
        _At(at, "last"),
        nn.Linear(WIDTH, WIDTH, bias=False),
    )
    for place, layer in enumerate(layers):
        for parameter in layer.parameters():
            parameter.data = torch.linspace(-0.1, 0.1 + place, WIDTH * WIDTH).reshape(WIDTH, WIDTH)
    return nn.Sequential(*layers)


def _around(owner: Any, name: str, at: Callable[[str], None], before: str = "", after: str = "") -> None:
    inner = getattr(owner, name)

    def outer(*args: Any, **kwargs: Any) -> Any:
        at(before)
        try:
            return inner(*args, **kwargs)
        finally:
            at(after)

    setattr(owner, name, outer)


class Script:
    """A training script with a scheduler, buffers, a generator and validation.

    Attributes:
        heard: the steps that `RolledBack` has named.
        taken: step -> losses and learning rates of it, once for each time that they were others.
    """

    def __init__(self, worker: ps.Worker, at: Callable[[str], None], *, overlap: Any, kind: str) -> None:
        self.heard: list[int] = []
        self.taken: dict[int, set[tuple[float, ...]]] = {}
        self._losses: list[float] = []
        self._worker, self._at, self._kind = worker, at, kind
        halves = 2 if kind in ("together", "in turn") else 1
        self._models = [_half(at) for _ in range(halves)]
        self._optimizers: list[Any] = [
            worker.wrap(torch.optim.AdamW(model.parameters(), lr=1e-3), model, overlap=overlap)
            for model in self._models
        ]
        self._schedulers = [torch.optim.lr_scheduler.ExponentialLR(it, 0.9) for it in self._optimizers]
        self._noise = torch.Generator().manual_seed(worker.rank)
        worker.register_state("noise", self._noise)
        for number, scheduler in enumerate(self._schedulers):
            worker.register_state(f"scheduler {number}", scheduler)
        for optimizer in self._optimizers[-1:]:
            _around(sender_of(optimizer), "send", at, after="gradients sent")
            _around(cycle_of(optimizer), "_ask", at, after="weights asked for")
        self._loader = worker.loader(_Samples(at), batch_size=BATCH)

    def run(self) -> dict[str, Any]:
        """To the end; what it ends with."""
        finished = False
        while not finished:
            try:
                for _ in self._worker.epochs(EPOCHS):
                    self._epoch()
                self._at("before finish")
                self._evaluate("evaluation before finish")
                self._worker.finish()
                finished = True
            except ps.RolledBack as error:
                self._losses.clear()
                self.heard.append(error.step)
        state = {f"{n}/{key}": it for n, m in enumerate(self._models) for key, it in m.state_dict().items()}
        return {
            **{name: it.tolist() for name, it in state.items()},
            "noise": self._noise.get_state().tolist(),
            "scheduled": [scheduler.last_epoch for scheduler in self._schedulers],
            "rates": [scheduler.get_last_lr() for scheduler in self._schedulers],
            "steps": [optimizer.step_number for optimizer in self._optimizers],
            "taken": self.taken,
            "abstained": [optimizer.abstained for optimizer in self._optimizers],
        }

    def _epoch(self) -> None:
        batches = 2 if self._kind == "accumulating" else 1
        for number, x in enumerate(self._loader):
            before = self._worker.step
            self._at("batch")
            last = (number + 1) % batches == 0
            if self._kind == "in turn":
                for model, optimizer in zip(self._models, self._optimizers, strict=True):
                    self._backward(model, x)
                    optimizer.step()
                    self._at("step done")
                    optimizer.zero_grad()
            elif last:
                for model in self._models:
                    self._backward(model, x)
                for optimizer in self._optimizers:
                    optimizer.step()
                    self._at("step done")
                for optimizer in self._optimizers:
                    optimizer.zero_grad()
            else:
                with self._optimizers[0].no_sync():
                    self._backward(self._models[0], x)
                continue
            self._at("gradients cleared")
            self._note(before)
            for scheduler in self._schedulers:
                scheduler.step()
            if self._worker.step % 2 == 0:  # which waits for weights; else the next forward does
                self._evaluate("")

    def _note(self, before: int) -> None:
        if self._worker.step == before + 1:
            rates = [group["lr"] for it in self._optimizers for group in it.param_groups]
            self.taken.setdefault(before, set()).add((*self._losses, *rates))
        self._losses.clear()

    def _backward(self, model: nn.Module, x: torch.Tensor) -> None:
        noise = 0.1 * torch.randn(x.shape, generator=self._noise)
        loss = model(x + noise).square().mean()
        self._losses.append(loss.item())
        self._at("forward done")
        loss.backward()
        self._at("backward done")

    @torch.no_grad()
    def _evaluate(self, point: str) -> None:
        for model in self._models:
            model.eval()
            self._at(point)
            model(torch.ones(2, WIDTH))
            model.train()
