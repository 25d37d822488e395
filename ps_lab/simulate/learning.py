"""Real gradients: small models on scanned digits, or on clusters that are drawn, in numpy and float64.

A gradient is of the weights that its worker really read. The optimizer is SGD, with momentum as torch has it
(without dampening). Equal seeds have equal batches under every consistency model.

Legend: n samples, d inputs, k classes, h hidden units, b samples of a batch, P all weights.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ps_wire.errors import UsageError

Array = npt.NDArray[np.float64]
HIDDEN = 32
MAX_DELAY = 10_000


class ModelKind(StrEnum):
    """The kind of model that is trained."""

    LOGISTIC = "logistic"
    MLP = "mlp"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Samples of k classes, (n, d) and (n,), for training and for tests."""

    train: Array
    train_labels: npt.NDArray[np.int64]
    test: Array
    test_labels: npt.NDArray[np.int64]

    @property
    def num_classes(self) -> int:
        """Of all samples."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


@lru_cache(maxsize=2)
def digits() -> Data:
    """1437 and 360 scanned digits of 8 x 8 where scikit-learn is installed, else `clusters`."""
    if importlib.util.find_spec("sklearn") is None:
        return clusters()
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra

    images, labels = load_digits(return_X_y=True)
    return _split(np.asarray(images, dtype=np.float64) / 16.0, np.asarray(labels, dtype=np.int64))


def clusters(num_samples: int = 1797, num_inputs: int = 64, num_classes: int = 10) -> Data:
    """Normal clusters that overlap a little, always the same."""
    random = np.random.default_rng(0)
    labels = np.arange(num_samples, dtype=np.int64) % num_classes
    centres = random.normal(size=(num_classes, num_inputs))
    return _split(0.5 * centres[labels] + random.normal(size=(num_samples, num_inputs)), labels)


def _split(inputs: Array, labels: npt.NDArray[np.int64]) -> Data:
    order = np.random.default_rng(0).permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    at = len(labels) * 4 // 5
    return Data(train=inputs[:at], train_labels=labels[:at], test=inputs[at:], test_labels=labels[at:])


def _flat(*parts: Array) -> Array:
    return np.concatenate([part.ravel() for part in parts])


class Model:
    """A softmax classifier with at most one hidden layer of tanh, its weights one vector of shape (P,)."""

    def __init__(self, kind: ModelKind, data: Data) -> None:
        inputs, classes = data.train.shape[1], data.num_classes
        widths = (inputs, classes) if kind is ModelKind.LOGISTIC else (inputs, HIDDEN, classes)
        self._shapes = [shape for into, out in pairwise(widths) for shape in ((into, out), (out,))]
        self.num_weights = sum(int(np.prod(shape)) for shape in self._shapes)

    def start(self, seed: int) -> Array:
        """Weights to begin with, (P,): normal ones of variance 1 / inputs, and biases of zero."""
        random = np.random.default_rng(seed)
        drawn = [
            random.normal(size=shape) / np.sqrt(shape[0]) if len(shape) == 2 else np.zeros(shape)
            for shape in self._shapes
        ]
        return _flat(*drawn)

    def gradient(self, weights: Array, inputs: Array, labels: npt.NDArray[np.int64]) -> tuple[Array, float]:
        """The gradient (P,) of the mean cross-entropy of a batch, (b, d) and (b,), and that itself."""
        parts = self._parts(weights)
        hidden, logits = self._forward(parts, inputs)
        rows = np.arange(len(labels))
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=1, keepdims=True)
        loss = float((np.log(sums[:, 0]) - shifted[rows, labels]).mean())
        error = exponentials / sums  # (b, k)
        error[rows, labels] -= 1.0
        error /= len(labels)
        if hidden is None:
            return _flat(inputs.T @ error, error.sum(axis=0)), loss
        back = (error @ parts[2].T) * (1.0 - hidden * hidden)  # (b, h)
        return _flat(inputs.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)), loss

    def accuracy(self, weights: Array, inputs: Array, labels: npt.NDArray[np.int64]) -> float:
        """Share of samples whose class it finds."""
        _, logits = self._forward(self._parts(weights), inputs)
        return float((logits.argmax(axis=1) == labels).mean())

    def _parts(self, weights: Array) -> list[Array]:
        parts, at = [], 0
        for shape in self._shapes:
            size = int(np.prod(shape))
            parts.append(weights[at : at + size].reshape(shape))
            at += size
        return parts

    @staticmethod
    def _forward(parts: Sequence[Array], inputs: Array) -> tuple[Array | None, Array]:
        if len(parts) == 2:
            return None, inputs @ parts[0] + parts[1]
        hidden = np.tanh(inputs @ parts[0] + parts[1])
        return hidden, hidden @ parts[2] + parts[3]


class SgdLearner:
    """Weights on the servers, by partition and version, and workers' batches. See `engine.Learner`.

    Arrays that were handed out are never written.
    """

    def __init__(
        self,
        kind: ModelKind,
        data: Data,
        *,
        num_workers: int,
        num_partitions: int = 1,
        batch_size: int = 16,
        lr: float = 0.1,
        momentum: float = 0.0,
        delay: int = 0,
        seed: int = 0,
    ) -> None:
        """Begins with the weights of `seed`; gradients are applied `delay` steps late."""
        if not 0.0 < lr < np.inf or not 0.0 <= momentum < 1.0:
            raise UsageError(f"simulate: lr must be > 0 and momentum in [0, 1), got {lr:g} and {momentum:g}")
        if not 0 <= delay <= MAX_DELAY:
            raise UsageError(f"simulate: a staleness on purpose must be from 0 to {MAX_DELAY}, got {delay}")
        self._model = Model(kind, data)
        self._data = data
        self._num_workers = num_workers
        self._batch_size = min(batch_size, len(data.train))
        self._lr, self._momentum, self._delay, self._seed = lr, momentum, delay, seed
        cuts = [self._model.num_weights * index // num_partitions for index in range(num_partitions + 1)]
        self._slices = [slice(begin, end) for begin, end in pairwise(cuts)]
        start = self._model.start(seed)
        self._newest = [start[part].copy() for part in self._slices]
        self._speeds = [np.zeros_like(part) for part in self._newest]
        self._kept: list[dict[int, Array]] = [{0: part} for part in self._newest]
        self._late: list[deque[Array]] = [deque() for _ in self._slices]
        self._epoch: tuple[int, npt.NDArray[np.int64]] = (-1, np.zeros(0, np.int64))

    def gradient(self, worker: int, step: int, weights: Sequence[Array]) -> tuple[list[Array], float]:
        """See `engine.Learner`."""
        batch = self._batch(worker, step)
        found, loss = self._model.gradient(
            np.concatenate(weights), self._data.train[batch], self._data.train_labels[batch]
        )
        return [found[part] for part in self._slices], loss

    def apply(self, partition: int, gradients: Sequence[Array], version: int, keep: frozenset[int]) -> None:
        """See `engine.Learner`."""
        mean = gradients[0]
        if len(gradients) > 1:
            mean = gradients[0].copy()
            for gradient in gradients[1:]:
                mean += gradient
            mean /= len(gradients)
        late = self._late[partition]
        late.append(mean)
        if len(late) > self._delay:
            speed = self._speeds[partition] = self._momentum * self._speeds[partition] + late.popleft()
            self._newest[partition] = self._newest[partition] - self._lr * speed
        kept = self._kept[partition]
        self._kept[partition] = {it: kept[it] for it in keep if it in kept} | {
            version: self._newest[partition]
        }

    def weights(self, partition: int, version: int) -> Array:
        """See `engine.Learner`; of a version that was kept, else the newest."""
        return self._kept[partition].get(version, self._newest[partition])

    def evaluate(self) -> dict[str, float]:
        """Accuracy on the test samples, and the loss on all training samples."""
        weights = np.concatenate(self._newest)
        _, loss = self._model.gradient(weights, self._data.train, self._data.train_labels)
        accuracy = self._model.accuracy(weights, self._data.test, self._data.test_labels)
        return {"accuracy": accuracy, "train_loss": loss}

    def _batch(self, worker: int, step: int) -> npt.NDArray[np.int64]:
        """Samples of a step: epochs are permutations, dealt out to the workers one batch after the other."""
        size = len(self._data.train)
        per_epoch = max(1, size // (self._num_workers * self._batch_size))
        epoch, round_ = divmod(step, per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, np.random.default_rng((self._seed, epoch)).permutation(size))
        begin = (round_ * self._num_workers + worker) * self._batch_size
        return self._epoch[1].take(range(begin, begin + self._batch_size), mode="wrap")
