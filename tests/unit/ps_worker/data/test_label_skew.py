"""Labels that are skewed by worker: drawn from a seed, with shares as drawn, and both ends of alpha."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from ps_wire.errors import UsageError
from ps_worker.data.label_skew import LabelSkew

CLASSES, EACH = 10, 30
LABELS = torch.arange(CLASSES).repeat(EACH)
DATA = TensorDataset(LABELS.float(), LABELS)


def skewed(alpha: float, worker: int = 0, seed: int = 0) -> LabelSkew:
    return LabelSkew(DATA, LABELS, alpha=alpha, worker=worker, seed=seed)


def shares(skew: LabelSkew) -> np.ndarray:
    """Of each class among all places."""
    labels = [int(skew[index][1]) for index in range(len(skew))]
    return np.bincount(labels, minlength=CLASSES) / len(labels)


def test_shares_are_those_drawn_and_a_pure_function_of_seed_and_worker():
    skew = skewed(0.5, worker=3, seed=7)
    assert len(skew) == len(DATA)
    assert np.abs(shares(skew) - skew.mix).max() < 1 / len(DATA)
    assert (skew.places == skewed(0.5, worker=3, seed=7).places).all()
    assert not np.allclose(skew.mix, skewed(0.5, worker=2, seed=7).mix)
    assert not np.allclose(skew.mix, skewed(0.5, worker=3, seed=8).mix)


def test_a_large_alpha_gives_every_worker_all_samples_once():
    assert sorted(skewed(1e9).places) == list(range(len(DATA)))


def test_a_small_alpha_gives_each_worker_about_one_class_and_each_class_its_turn():
    mixes = np.array([skewed(1e-3, worker).mix for worker in range(200)])
    assert (mixes.max(axis=1) > 0.95).mean() > 0.9
    assert len(set(mixes.argmax(axis=1))) == CLASSES


def test_shares_vary_as_the_dirichlet_distribution_says():
    """Var q = p (1 - p) / (alpha + 1) of Dir(alpha p) with sum of p = 1; 400 workers of a fixed seed."""
    alpha, p = 2.0, 1 / CLASSES
    mixes = np.array([skewed(alpha, worker).mix for worker in range(400)])
    assert mixes.mean(axis=0) == pytest.approx([p] * CLASSES, abs=0.03)
    assert mixes.var(axis=0).mean() == pytest.approx(p * (1 - p) / (alpha + 1), rel=0.1)


@pytest.mark.parametrize(
    ("labels", "alpha", "said"),
    [
        (LABELS, 0.0, "alpha must be a number > 0"),
        (LABELS, float("nan"), "alpha must be"),
        (LABELS[1:], 1.0, "for each of 300 samples, got torch.int64"),
        (LABELS.float(), 1.0, "got torch.float32"),
    ],
)
def test_what_makes_no_sense_is_named(labels: torch.Tensor, alpha: float, said: str):
    with pytest.raises(UsageError, match=said):
        LabelSkew(DATA, labels, alpha=alpha, worker=0)
