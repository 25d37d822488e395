"""A run of TensorBoard, read as it reads one."""

from __future__ import annotations

import warnings
from pathlib import Path


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Gives (step, value) by tag, without what is void."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TensorBoard's own parts
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415
    found = EventAccumulator(str(run)).Reload()
    return {tag: [(it.step, it.value) for it in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
