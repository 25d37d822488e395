"""Weights that worker 0 shows to readers where there are no servers: two files in a folder.

    ask       the number of a reader's question, until it is seen
    weights   safetensors of all parameters and buffers, with version, the question that they answer, and
              whether they are final; always whole

Worker 0 answers at the end of a step, so what a reader gets is of one version. One reader at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

ASK = "ask"
WEIGHTS = "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsThere:
    """Weights as they were shown.

    Attributes:
        question: that they answer; 0: none, they are those of the start.
        version: steps that they have in them.
        ended: they are final.
        tensors: by the model's names.
    """

    question: int
    version: int
    ended: bool
    tensors: Mapping[str, torch.Tensor]


class Shown:
    """Worker 0's end."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        """Of a model; shows its start."""
        self._ask = folder / ASK
        self._weights = folder / WEIGHTS
        self._model = model
        self._show(0, 0)

    def after_step(self, version: int) -> None:
        """Answers a question, if there is one."""
        if self._ask.exists():
            question = int(self._ask.read_text(encoding="ascii"))
            self._ask.unlink()
            self._show(question, version)

    def end(self, version: int) -> None:
        """The weights are final."""
        self._show(0, version, ended=True)

    def _show(self, question: int, version: int, *, ended: bool = False) -> None:
        half = self._weights.with_suffix(".half")
        tensors = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in self._model.state_dict().items()
        }
        facts = {"question": str(question), "version": str(version), "ended": str(int(ended))}
        save_file(tensors, half, metadata=facts)
        half.replace(self._weights)


class Asking:
    """A reader's end."""

    def __init__(self, folder: Path) -> None:
        """Has asked nothing."""
        self._folder = folder
        self._question = 0

    @property
    def there(self) -> bool:
        """Whether weights are shown at all."""
        return (self._folder / WEIGHTS).exists()

    def ask(self) -> None:
        """Asks for weights of now."""
        self._question += 1
        half = self._folder / f"{ASK}.half"
        half.write_text(str(self._question), encoding="ascii")
        half.replace(self._folder / ASK)

    def answer(self) -> WeightsThere | None:
        """To what was asked last, or the final weights; None: not yet."""
        with safe_open(self._folder / WEIGHTS, framework="pt") as file:
            facts = file.metadata()
            question, ended = int(facts["question"]), facts["ended"] == "1"
            if question != self._question and not ended:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return WeightsThere(question=question, version=int(facts["version"]), ended=ended, tensors=tensors)
