"""A dataset whose labels are skewed by worker: each has another mix of classes.

A pure function of (seed, worker); it must not know who deals the samples.

Legend: N = samples, C = classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ps_wire.errors import UsageError


class LabelSkew(Dataset[Any]):
    """The samples of a dataset as one worker has them: N places, filled by a mix of classes.

    The mix q of a worker is drawn from a Dirichlet distribution, q ~ Dir(alpha p), where p are the shares of
    the C classes in the dataset: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution
    for federated visual classification", arXiv:1909.06335, 2019. A large alpha gives all workers p, a small
    one each worker few classes. As there, each worker's mix is drawn by itself. Unlike there, a class that is
    drawn more often than it has samples begins again, so that shares stay as drawn.

    It goes into `worker.loader` in the place of the dataset, with the same length on all workers.

    Attributes:
        mix: (C,) q, by class in ascending order.
        places: (N,) for each index the sample that is there.
    """

    def __init__(
        self, dataset: Dataset[Any], labels: torch.Tensor, *, alpha: float, worker: int, seed: int = 0
    ) -> None:
        """Draws the mix, and fills the places.

        Args:
            dataset: with a length and an index.
            labels: (N,) of whole numbers, the class of each sample.
            alpha: > 0, the concentration.
            worker: whose mix it is.
            seed: another one draws other mixes.

        Raises:
            UsageError: alpha is no number above 0, or labels are not one whole number for each sample.
        """
        if not 0.0 < alpha < math.inf:
            raise UsageError(f"LabelSkew: alpha must be a number > 0, got {alpha}")
        size = len(dataset)  # type: ignore[arg-type]
        if labels.shape != (size,) or labels.is_floating_point() or not size:
            raise UsageError(
                f"LabelSkew: labels must be one whole number for each of {size} samples, "
                f"got {labels.dtype} {tuple(labels.shape)}"
            )
        self._dataset = dataset
        random = np.random.default_rng([seed, worker])
        _, classes, counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
        self.mix = random.dirichlet(alpha * counts / size)
        filled = [
            np.resize(random.permutation(np.flatnonzero(classes == number)), count)
            for number, count in enumerate(_apportioned(self.mix, size))
        ]
        self.places = random.permutation(np.concatenate(filled))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[int(self.places[index])]


def _apportioned(shares: np.ndarray[Any, Any], size: int) -> list[int]:
    """Whole numbers with the sum `size`, as near to the shares as can be (largest remainders)."""
    exact = shares * size
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: size - int(counts.sum())]] += 1
    return [int(count) for count in counts]
