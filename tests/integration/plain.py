"""Training scripts in plain torch: the same `main`, with replicas in one process in place of the service.

A script sees `Plain` where it imports `ps`. Its optimizer is torch's own (fused); before each step the
replicas' gradients are averaged in rank order, as BSP says. Only the data are the service's: every replica
has the loaders of one worker or of several, whose batches it joins into one.

Replicas take turns, one running at a time, since a script's `manual_seed` holds for the whole process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

import ps_worker as ps

from .processes import LIMIT_S
from .servers import Servers, fresh_job
from .team import join, together


class Replica:
    """What a script gets from `connect`."""

    def __init__(self, plain: Plain, rank: int, members: Sequence[ps.Worker]) -> None:
        self.rank = rank
        self.num_workers = members[0].num_workers
        self._plain = plain
        self._members = members

    def wrap(self, optimizer: torch.optim.Optimizer, _model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer in its fused form, with averaged gradients."""
        groups = [{**group, "fused": True, "foreach": False} for group in optimizer.param_groups]
        fused = type(optimizer)(groups, lr=optimizer.defaults["lr"], fused=True)
        fused.no_sync = contextlib.nullcontext
        fused.register_step_pre_hook(lambda *_: self._plain.average(self.rank, fused))
        return fused

    def loader(self, dataset: Any, **options: Any) -> Joined:
        return Joined([member.loader(dataset, **options) for member in self._members])

    def epochs(self, count: int) -> Iterable[int]:
        return range(count)

    def finish(self) -> None: ...

    def register_state(self, _name: str, _kept: Any) -> None: ...

    def synchronize(self) -> None: ...


class Joined:
    """Loaders side by side: the n-th batches of all, as one."""

    def __init__(self, loaders: Sequence[Any]) -> None:
        self._loaders = loaders

    def __len__(self) -> int:
        return len(self._loaders[0])

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for batches in zip(*self._loaders, strict=True):
            yield [torch.cat(parts) for parts in zip(*batches, strict=True)]


class Plain:
    """See the module's docstring."""

    RolledBack = ps.RolledBack  # no script gets one

    def __init__(self, cluster: Servers, shares: Sequence[Sequence[int]]) -> None:
        """One replica per entry of `shares`: the workers whose data it takes."""
        self._cluster = cluster
        self._job = fresh_job()
        self._shares = shares
        self._ranks = itertools.count()
        self._turn = threading.Lock()
        self._given: list[list[torch.Tensor | None]] = [[] for _ in shares]
        self._means: list[torch.Tensor | None] = []
        self._all_here = threading.Barrier(len(shares), self._take_means, LIMIT_S)

    @contextlib.contextmanager
    def connect(self) -> Iterator[Replica]:
        """A replica, with the data of its workers."""
        rank = next(self._ranks)
        num_workers = sum(len(share) for share in self._shares)
        with contextlib.ExitStack() as stack:
            members = [
                stack.enter_context(join(self._cluster, self._job, num_workers=num_workers, worker=worker))
                for worker in self._shares[rank]
            ]
            yield Replica(self, rank, members)

    def average(self, rank: int, optimizer: torch.optim.Optimizer) -> None:
        """Gives this replica the mean of all replicas' gradients, once all are here."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._given[rank] = [parameter.grad for parameter in parameters]
        self._turn.release()
        try:
            self._all_here.wait()
        finally:
            self._turn.acquire()
        for parameter, mean in zip(parameters, self._means, strict=True):
            parameter.grad = None if mean is None else mean.clone()

    def _take_means(self) -> None:
        self._means = []
        for gradients in zip(*self._given, strict=True):
            there = [gradient for gradient in gradients if gradient is not None]
            assert len(there) in (0, len(gradients))
            self._means.append(sum(there[1:], start=there[0]) / len(there) if there else None)

    def run(self, script: Path, *arguments: str) -> None:
        """Runs the script's `main` with these arguments in every replica, to its end."""
        module = imported(script)
        module.ps = self  # type: ignore[attr-defined]

        def one() -> None:
            torch.set_num_threads(1)
            with self._turn:
                module.main()

        with mock.patch.object(sys, "argv", [str(script), *arguments]):
            together([one] * len(self._shares))


def imported(script: Path) -> ModuleType:
    """A script as a module, its `main` not run."""
    spec = importlib.util.spec_from_file_location(f"plain_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
