"""Profiles of disturbances: stragglers, faults, slow links and skewed data, as values.

A profile has a name, and at most one kind of disturbance. It is a value that prints and compares: what
sleeps, stops and kills is elsewhere. Factors are of the compute time that the worker itself has measured, and
what is drawn is drawn from the run's seed, the worker and the step, so all models meet the same stragglers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from ps_lab.compare.section import Section, nearest
from ps_wire.errors import UsageError
from ps_wire.spec import stragglers
from ps_wire.spec.stragglers import Straggler, StragglerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Some workers are slower by a factor, in every step.

    Attributes:
        factor: of their compute time, > 1.
        workers: which; none: all.
    """

    factor: float
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """A step is slower by a factor now and then.

    Attributes:
        probability: of each step by itself.
        factor: of its compute time, > 1.
        workers: which; none: all.
    """

    probability: float
    factor: float
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Each step takes longer by a time from an exponential distribution.

    Attributes:
        mean_factor: mean of that time, as a part of the compute time.
        workers: which; none: all.
    """

    mean_factor: float
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """Workers are slow for a while, then not: a Markov chain of two states, whose times are geometric.

    Attributes:
        factor: of the compute time while slow, > 1.
        mean_slow_steps: how long slow times last.
        mean_quick_steps: how long the others do.
        workers: which; none: all.
    """

    factor: float
    mean_slow_steps: float
    mean_quick_steps: float
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One worker is stopped (SIGSTOP) at a step, for a time.

    Attributes:
        worker: which.
        step: of that worker.
        pause_s: how long.
    """

    worker: int
    step: int
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """One worker is killed (SIGKILL) at a step.

    Attributes:
        worker: which.
        step: of that worker.
        restart: it is started again at once.
    """

    worker: int
    step: int
    restart: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """Some workers reach the servers over a slow link.

    Attributes:
        megabits_per_s: each way.
        delay_ms: each way.
        workers: which; none: all.
    """

    megabits_per_s: float
    delay_ms: float = 0.0
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSkew:
    """Workers have labels in other proportions: shares from a Dirichlet distribution (Hsu et al. 2019).

    Attributes:
        alpha: its concentration; the smaller, the more skewed.
    """

    alpha: float


Disturbance: TypeAlias = Constant | Transient | Exponential | Bursty | Pause | Crash | SlowLink | LabelSkew
NONE = "none"
KINDS: dict[str, type[Disturbance]] = {
    "constant": Constant,
    "transient": Transient,
    "exponential": Exponential,
    "bursty": Bursty,
    "pause": Pause,
    "crash": Crash,
    "slow_link": SlowLink,
    "label_skew": LabelSkew,
}
_OPTIONAL = {"workers", "restart", "delay_ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named way in which runs are disturbed.

    Attributes:
        name: as reports show it.
        disturbance: None: nothing is done to the run.
    """

    name: str = NONE
    disturbance: Disturbance | None = None

    @property
    def kind(self) -> str:
        """As a person types it."""
        return next((kind for kind, type_ in KINDS.items() if type(self.disturbance) is type_), NONE)

    def stragglers(self, seed: int) -> StragglerProfile:
        """What a worker is told of it, and a simulation reckons with; links and labels are not in it."""
        part = _straggler(self.disturbance)
        return StragglerProfile(parts=() if part is None else (part,), seed=seed)

    def to_json(self) -> dict[str, Any]:
        """As a table of an experiment has it."""
        values = {} if self.disturbance is None else asdict(self.disturbance)
        return {"name": self.name, "kind": self.kind, **values}

    def __str__(self) -> str:
        values = {} if self.disturbance is None else asdict(self.disturbance)
        facts = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in values.items())
        return f"{self.kind} ({facts})" if facts else "nothing is disturbed"


def _straggler(disturbance: Disturbance | None) -> Straggler | None:  # noqa: PLR0911 - a return for each kind
    match disturbance:
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


def parse(values: object, *, where: str, num_workers: int) -> Profile:
    """The profile of a table.

    Args:
        values: what TOML has there.
        where: the table's key.
        num_workers: the smallest number of workers of the experiment, which must have those named.

    Raises:
        UsageError: it is none; the key is named.
    """
    kind = values.get("kind") if isinstance(values, dict) else None
    if isinstance(kind, str) and kind != NONE and kind not in KINDS:
        raise UsageError(
            f"{where}.kind: unknown {kind!r}; {nearest(kind, (NONE, *KINDS))}", key=f"{where}.kind"
        )
    type_ = KINDS.get(kind) if isinstance(kind, str) else None
    names = () if type_ is None else tuple(field.name for field in fields(type_))
    section = Section(values, where=where, known=("name", "kind", *names))
    section.text("kind")
    name = section.text("name")
    if type_ is None:
        return Profile(name=name)
    needed = [field for field in names if field in section or field not in _OPTIONAL]
    given = {field: _value(section, field, num_workers) for field in needed}
    return Profile(name=name, disturbance=type_(**given))


def _value(section: Section, name: str, num_workers: int) -> Any:
    if name in {"workers", "worker"}:
        found = section.wholes(name) if name == "workers" else section.whole(name)
        for worker in found if isinstance(found, tuple) else (found,):
            if worker >= num_workers:
                raise section.refused(name, f"below {num_workers}, the fewest workers of a run", worker)
        return found
    if name == "probability" and section.number(name, above=0.0) > 1:
        raise section.refused(name, "a number > 0 and <= 1", section.number(name))
    return _READ[name](section, name)


_READ: dict[str, Callable[[Section, str], Any]] = {
    "factor": lambda section, name: section.number(name, above=1.0),
    "delay_ms": lambda section, name: section.number(name, least=0.0),
    "step": lambda section, name: section.whole(name),
    "restart": lambda section, name: section.flag(name),
} | dict.fromkeys(
    (
        "probability",
        "mean_factor",
        "mean_slow_steps",
        "mean_quick_steps",
        "pause_s",
        "megabits_per_s",
        "alpha",
    ),
    lambda section, name: section.number(name, above=0.0),
)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "all" if not value else " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
