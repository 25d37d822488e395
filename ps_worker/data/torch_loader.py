"""The arguments of a `DataLoader` of torch's, so that `Worker.shard` can make it again over a share."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ps_wire.errors import UsageError

_KEPT = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)
_INSTEAD = "use worker.loader(dataset, batch_size=...)"


def read(loader: DataLoader[Any], *, seed: int | None) -> dict[str, Any]:
    """The arguments of `Loader` that give the same batches, dealt to the workers.

    Args:
        loader: over a map-style or iterable dataset, as torch makes it from `batch_size` and `shuffle`.
        seed: of the order; None takes the loader's generator's, else 0.

    Raises:
        UsageError: it has batches or a sampler of its own, which cannot be dealt.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(f"worker.shard takes a torch.utils.data.DataLoader, got {type(loader).__name__}")
    if loader.batch_size is None:
        if loader.batch_sampler is None:
            raise UsageError(f"worker.shard cannot deal a loader with batch_size=None: {_INSTEAD}")
        raise UsageError(
            f"worker.shard cannot deal a loader with a batch_sampler of its own "
            f"({type(loader.batch_sampler).__name__}): {_INSTEAD}"
        )
    generator = loader.generator
    shuffle = None
    if not isinstance(loader.dataset, IterableDataset):
        if type(loader.batch_sampler) is not BatchSampler:
            raise UsageError(f"worker.shard cannot deal a {type(loader.batch_sampler).__name__}: {_INSTEAD}")
        shuffle = _is_shuffled(loader)
        generator = generator or getattr(loader.sampler, "generator", None)
    return {
        "dataset": loader.dataset,
        "batch_size": loader.batch_size,
        "shuffle": shuffle,
        "seed": _seed_of(generator) if seed is None else seed,
        "drop_last": loader.drop_last,
        "options": {name: getattr(loader, name) for name in _KEPT if _is_set(loader, name)},
    }


def _is_shuffled(loader: DataLoader[Any]) -> bool:
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is not RandomSampler:
        raise UsageError(
            f"worker.shard cannot keep a sampler of its own ({type(sampler).__name__}) and deal every sample "
            f"once: {_INSTEAD}"
        )
    if sampler.replacement or sampler.num_samples != len(sampler.data_source):
        raise UsageError(
            "worker.shard deals every sample once, unlike a RandomSampler with replacement or num_samples: "
            + _INSTEAD
        )
    return True


def _is_set(loader: DataLoader[Any], name: str) -> bool:
    """Whether it is anything but torch's default; some defaults may not be given."""
    return getattr(loader, name, None) not in (None, "")


def _seed_of(generator: torch.Generator | None) -> int:
    return 0 if generator is None else generator.initial_seed()
