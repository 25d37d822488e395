"""Stragglers: how much slower than by itself a worker is in a step, as a person types it.

A pure function of (seed, worker, step), the same on every machine: a worker that sleeps by it and a
simulation that reckons with it have the same stragglers. It must not know who asks; it neither sleeps nor
kills.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import ClassVar, TypeAlias

from ps_wire.errors import UsageError

VALID = (
    "none, constant:f=F, transient:p=P,f=F, exponential:mean=M, bursty:p=P,length=L,f=F, pause:step=T,s=S, "
    "crash:step=T[,restart=S], slow_link:f=F; each with worker=0+3 or worker=all; several with ';' between "
    "them, and seed=N"
)
MAX_WHOLE = 10**9  # of steps, workers and seeds as they are typed
MAX_SECONDS = 1e9
MAX_FACTOR = 1e6
MAX_LENGTH = 1e4  # of a burst: so many draws are looked at for one step
MAX_PARTS = 16
ALL = "all"
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """The delay of a worker in one step, beside its own work.

    Attributes:
        factor: the step's compute takes so many times as long as by itself.
        link_factor: its bytes take so many times as long.
        pause_s: the process stands still so long before it computes.
        restart_s: the process is killed before it computes, and starts again so much later; infinite: never;
            None: it is not killed.
    """

    factor: float = 1.0
    link_factor: float = 1.0
    pause_s: float = 0.0
    restart_s: float | None = None


AS_EVER = Slowness()


def uniform(seed: int, stream: int, worker: int, step: int) -> float:
    """A number in [0, 1), drawn for this step of this worker: splitmix64 of (seed, stream, worker, step).

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    return (_mix(_key(seed, stream, worker) + step) >> 11) * 2.0**-53


@lru_cache(maxsize=8192)
def _key(seed: int, stream: int, worker: int) -> int:
    return _mix(_mix(_mix(seed) + stream) + worker)


def _mix(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A worker that is slower in every step.

    Attributes:
        factor: of its compute, f in text.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "constant"
    WORDS: ClassVar[Mapping[str, str]] = {"f": "factor", "worker": "workers"}
    factor: float
    workers: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        _check_factor(self.KIND, self.factor)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        return f"compute takes {self.factor:g} times as long in every step"

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:  # noqa: ARG002
        """How slow the worker is in the step."""
        return Slowness(factor=self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """Each step by itself is slow with a probability.

    Attributes:
        probability: p in text.
        factor: of the compute of a slow step, f in text.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "transient"
    WORDS: ClassVar[Mapping[str, str]] = {"p": "probability", "f": "factor", "worker": "workers"}
    probability: float
    factor: float
    workers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self.KIND, "p", self.probability, 0.0, 1.0)
        _check_factor(self.KIND, self.factor)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        return (
            f"compute takes {self.factor:g} times as long in {100 * self.probability:g} % of the steps, each "
            "drawn by itself"
        )

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:
        """How slow the worker is in the step."""
        slow = uniform(seed, stream, worker, step) < self.probability
        return Slowness(factor=self.factor) if slow else AS_EVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Each step takes its own time and an exponentially distributed share of it more: a factor of 1 + X.

    The shifted exponential is the usual model of stragglers: Lee et al., "Speeding up distributed machine
    learning using codes", IEEE Transactions on Information Theory 2018.

    Attributes:
        mean: of X.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "exponential"
    WORDS: ClassVar[Mapping[str, str]] = {"mean": "mean", "worker": "workers"}
    mean: float
    workers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self.KIND, "mean", self.mean, 0.0, MAX_FACTOR)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        return f"compute takes an exponentially drawn share longer in each step, {self.mean:g} on average"

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:
        """How slow the worker is in the step."""
        return Slowness(factor=1.0 - self.mean * math.log1p(-uniform(seed, stream, worker, step)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """Slow steps come in bursts: a Markov chain of two states, in equilibrium from the first step on.

    Attributes:
        probability: share of slow steps over a long time, p in text.
        length: mean length of a burst, in steps.
        factor: of the compute of a slow step, f in text.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "bursty"
    WORDS: ClassVar[Mapping[str, str]] = {
        "p": "probability",
        "length": "length",
        "f": "factor",
        "worker": "workers",
    }
    probability: float
    length: float
    factor: float
    workers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability < 1.0:
            raise _invalid(self.KIND, "p", self.probability, "must be >= 0 and < 1 (constant is always slow)")
        least = 1.0 / (1.0 - self.probability)
        if not least <= self.length <= MAX_LENGTH:
            rule = f"must be from {least:g}, that of independent steps, to {MAX_LENGTH:g}"
            raise _invalid(self.KIND, "length", self.length, rule)
        _check_factor(self.KIND, self.factor)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        return (
            f"compute takes {self.factor:g} times as long in {100 * self.probability:g} % of the steps, in "
            f"bursts of {self.length:g} on average"
        )

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:
        """How slow the worker is in the step.

        A burst begins with probability b, and goes on with 1 - 1 / length >= b. So a draw below b makes the
        step slow whatever was before, one from 1 - 1 / length on makes it as ever, and one between keeps what
        was: the newest draw that decides is looked for.
        """
        ends = 1.0 / self.length
        begins = ends * self.probability / (1.0 - self.probability)
        while begins <= (drawn := uniform(seed, stream, worker, step)) < 1.0 - ends:
            step -= 1
        return Slowness(factor=self.factor) if drawn < begins else AS_EVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A process that stands still once, as by SIGSTOP.

    Attributes:
        step: before which it does.
        seconds: for so long, s in text.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "pause"
    WORDS: ClassVar[Mapping[str, str]] = {"step": "step", "s": "seconds", "worker": "workers"}
    step: int
    seconds: float
    workers: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        _check(self.KIND, "step", self.step, 0, MAX_WHOLE)
        _check(self.KIND, "s", self.seconds, 0.0, MAX_SECONDS)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        return f"the process stands still for {self.seconds:g} s before step {self.step}"

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:  # noqa: ARG002
        """How slow the worker is in the step."""
        return Slowness(pause_s=self.seconds) if step == self.step else AS_EVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A process that is killed once, as by SIGKILL.

    Attributes:
        step: before which it is.
        restart_s: it starts again so much later, restart in text; infinite: never.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "crash"
    WORDS: ClassVar[Mapping[str, str]] = {"step": "step", "restart": "restart_s", "worker": "workers"}
    step: int
    restart_s: float = math.inf
    workers: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        _check(self.KIND, "step", self.step, 0, MAX_WHOLE)
        if self.restart_s != math.inf:
            _check(self.KIND, "restart", self.restart_s, 0.0, MAX_SECONDS)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        again = "never again" if self.restart_s == math.inf else f"again {self.restart_s:g} s later"
        return f"the process is killed before step {self.step}, and starts {again}"

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:  # noqa: ARG002
        """How slow the worker is in the step."""
        return Slowness(restart_s=self.restart_s) if step == self.step else AS_EVER


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A worker whose bytes take longer, both ways, in every step.

    Attributes:
        factor: of the time on the wire, f in text.
        workers: whom it is about; empty: all.
    """

    KIND: ClassVar[str] = "slow_link"
    WORDS: ClassVar[Mapping[str, str]] = {"f": "factor", "worker": "workers"}
    factor: float
    workers: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        _check_factor(self.KIND, self.factor)

    @property
    def meaning(self) -> str:
        """In words, without whom it is about."""
        return f"bytes and latency take {self.factor:g} times as long"

    def at(self, seed: int, stream: int, worker: int, step: int) -> Slowness:  # noqa: ARG002
        """How slow the worker is in the step."""
        return Slowness(link_factor=self.factor)


Straggler: TypeAlias = Constant | Transient | Exponential | Bursty | Pause | Crash | SlowLink
KINDS: Mapping[str, type[Straggler]] = {
    kind.KIND: kind for kind in (Constant, Transient, Exponential, Bursty, Pause, Crash, SlowLink)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerProfile:
    """All stragglers of a run. Several are independent of each other.

    Attributes:
        parts: may be empty: nobody is slow.
        seed: another one draws other steps.
    """

    parts: tuple[Straggler, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_WHOLE:
            raise UsageError(f"straggler: seed must be from 0 to {MAX_WHOLE}, got {self.seed}", spec="seed")

    def __str__(self) -> str:
        parts = ";".join(map(_text_of, self.parts)) or "none"
        return f"{parts};seed={self.seed}" if self.seed else parts

    @property
    def meaning(self) -> str:
        """Its effect on the run, in words."""
        return "; ".join(f"{part.meaning} ({_whom(part)})" for part in self.parts) or "nobody is slow"

    def at(self, worker: int, step: int) -> Slowness:
        """How slow the worker is in the step: factors multiply, pauses add up, the first crash counts."""
        found = [
            part.at(self.seed, stream, worker, step)
            for stream, part in enumerate(self.parts)
            if not part.workers or worker in part.workers
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            return AS_EVER
        return Slowness(
            factor=math.prod(it.factor for it in found),
            link_factor=math.prod(it.link_factor for it in found),
            pause_s=math.fsum(it.pause_s for it in found),
            restart_s=next((it.restart_s for it in found if it.restart_s is not None), None),
        )


def parse(text: str) -> StragglerProfile:
    """The profile that `text` describes, as `transient:p=0.1,f=4` or `slow_link:f=8,worker=2;seed=7`.

    Raises:
        UsageError: it does not parse, or a value makes no sense; the message names it and what is valid.
    """
    parts: list[Straggler] = []
    seed = 0
    words = [word.strip() for word in text.split(";") if word.strip()]
    if len(words) > MAX_PARTS:
        raise UsageError(f"straggler: at most {MAX_PARTS} parts, got {len(words)}", spec=text)
    for word in words:
        if word.startswith("seed="):
            seed = _whole("seed", "", word.removeprefix("seed="))
        elif word != "none":
            parts.append(_part(word))
    return StragglerProfile(parts=tuple(parts), seed=seed)


def _part(text: str) -> Straggler:
    name, _, rest = text.partition(":")
    kind = KINDS.get(name.strip())
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, n=1)
        meant = f", did you mean {near[0]}?" if near else ";"
        raise UsageError(f"unknown straggler {name!r}{meant} valid are: {VALID}", spec=text)
    given: dict[str, object] = {}
    for item in filter(None, (item.strip() for item in rest.split(","))):
        word, equals, value = (part.strip() for part in item.partition("="))
        field = kind.WORDS.get(word)
        if field is None or not equals:
            words = ", ".join(f"{it}=" for it in kind.WORDS)
            raise UsageError(f"straggler {name}: {item!r} is none of {words}", spec=text)
        if field in given:
            raise UsageError(f"straggler {name}: {word} is given twice: take one away", spec=text)
        given[field] = _value(field, f"{name}: {word}", value)
    missing = [word for word, field in kind.WORDS.items() if field not in given and field in _required(kind)]
    if missing:
        raise UsageError(f"straggler {name}: {missing[0]}= is missing; valid are: {VALID}", spec=text)
    return kind(**given)  # type: ignore[arg-type]


def _required(kind: type[Straggler]) -> frozenset[str]:
    made = kind.__dataclass_fields__
    return frozenset(name for name, it in made.items() if it.default is it.default_factory)


def _value(field: str, what: str, text: str) -> object:
    if field == "workers":
        return () if text == ALL else tuple(_whole(what, f", or {ALL}", it) for it in text.split("+"))
    if field == "step":
        return _whole(what, "", text)
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"straggler {what} must be a number, got {text!r}", spec=text) from None


def _whole(what: str, others: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return int(text)
    raise UsageError(f"straggler {what} must be a whole number{others}, got {text!r}", spec=text)


def _text_of(part: Straggler) -> str:
    said = ((word, field) for word, field in part.WORDS.items() if _said(part, field))
    return f"{part.KIND}:" + ",".join(f"{word}={_shown(getattr(part, field))}" for word, field in said)


def _whom(part: Straggler) -> str:
    if not part.workers:
        return "all workers"
    return f"worker{'s' if len(part.workers) > 1 else ''} {', '.join(map(str, part.workers))}"


def _said(part: Straggler, field: str) -> bool:
    default = {it.name: it.default for it in fields(part)}[field]
    return bool(getattr(part, field) != default)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or ALL
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _check_factor(kind: str, factor: float) -> None:
    if not 1.0 <= factor <= MAX_FACTOR:
        raise _invalid(kind, "f", factor, f"must be from 1 to {MAX_FACTOR:g}: a worker can only be slowed")


def _check(kind: str, name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise _invalid(kind, name, value, f"must be from {least:g} to {most:g}")


def _invalid(kind: str, name: str, value: float, rule: str) -> UsageError:
    return UsageError(f"straggler {kind}: {name} {rule}, got {value:g}", field=name)
