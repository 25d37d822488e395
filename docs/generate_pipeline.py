"""Generates the pictures of `docs/pipeline.md`: `make api`."""

import sys
from pathlib import Path

from torch import nn

from ps_lab.pipeline.picture import draw
from ps_lab.pipeline.planning import planned

HERE = Path(__file__).parent
PICTURES = {
    "pipeline-naive.svg": ("gpipe", 4, 1),
    "pipeline-gpipe.svg": ("gpipe", 4, 8),
    "pipeline-1f1b.svg": ("1f1b", 4, 8),
    "pipeline-interleaved.svg": ("interleaved1f1b", 8, 8),
    "pipeline-zero-bubble.svg": ("zero-bubble", 8, 8),
}
RANKS = 4


def generate() -> dict[str, str]:
    """Each picture, by its file: stages that take equally long, in ticks."""
    return {
        file: draw(
            planned(
                nn.Sequential(*(nn.Linear(1, 1) for _ in range(stages))),
                (),
                stages=stages,
                ranks=RANKS,
                schedule=schedule,
                microbatches=microbatches,
                by="parameters",
            )
        )
        for file, (schedule, stages, microbatches) in PICTURES.items()
    }


if __name__ == "__main__":
    for name, text in generate().items():
        (HERE / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"generated {name}\n")
