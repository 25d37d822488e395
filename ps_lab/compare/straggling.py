"""A profile's stragglers as `PS_STRAGGLER` has them: what a worker is told."""

from __future__ import annotations

import math

from ps_lab.compare.profiles import (
    Bursty,
    Constant,
    Crash,
    Exponential,
    LabelSkew,
    Pause,
    Profile,
    SlowLink,
    Transient,
)
from ps_wire.spec import stragglers
from ps_wire.spec.stragglers import Straggler, StragglerProfile


def straggler_text(profile: Profile, seed: int) -> str:
    """Of all workers of a run; "none" where nobody is slow."""
    part = _part(profile)
    return str(StragglerProfile(parts=() if part is None else (part,), seed=seed))


def _part(profile: Profile) -> Straggler | None:  # noqa: PLR0911 - a return for each kind
    match profile.disturbance:
        case Constant(factor=factor, workers=workers):
            return stragglers.Constant(factor=factor, workers=workers)
        case Transient(probability=probability, factor=factor, workers=workers):
            return stragglers.Transient(probability=probability, factor=factor, workers=workers)
        case Exponential(mean_factor=mean, workers=workers):
            return stragglers.Exponential(mean=mean, workers=workers)
        case Bursty(factor=factor, mean_slow_steps=slow, mean_quick_steps=quick, workers=workers):
            share = slow / (slow + quick)
            return stragglers.Bursty(probability=share, length=slow, factor=factor, workers=workers)
        case Pause(worker=worker, step=step, pause_s=seconds):
            return stragglers.Pause(step=step, seconds=seconds, workers=(worker,))
        case Crash(worker=worker, step=step, restart=restart):
            restart_s = 0.0 if restart else math.inf
            return stragglers.Crash(step=step, restart_s=restart_s, workers=(worker,))
        case SlowLink() | LabelSkew() | None:
            return None
