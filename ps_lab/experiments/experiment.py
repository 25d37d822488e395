"""An experiment: which runs are compared, as a person writes it in TOML. `docs/compare.md` has the keys.

It knows neither how runs are started nor what comes of them. Invariant: what `parse` returns was checked, and
each error names the key, with all tables above it.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ps_lab.experiments import profiles
from ps_lab.experiments.profiles import Profile
from ps_lab.experiments.section import Section, nearest
from ps_wire.errors import UsageError
from ps_wire.frames import carrier as carriers
from ps_wire.spec import consistency, wire_dtype
from ps_wire.spec.address import check_job_name

DDP = "ddp"
BASELINES = ("none", DDP)
MAX_FILE_BYTES = 1 << 20
LEAST_SEEDS = 5  # with fewer nothing is called significant
_UNFINGERPRINTED = {"description", "budget_s"}  # a folder may go on with another budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine of its own in the network of a run: a namespace with a shaped link.

    Attributes:
        workers: that are on it.
        megabits_per_s: of its link, each way.
        delay_ms: each way.
    """

    workers: tuple[int, ...]
    megabits_per_s: float
    delay_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The conditions that the runs have in common: processes and how they talk.

    Attributes:
        servers: shards.
        workers: of a run; with several numbers each model runs with each of them.
        group_size: processes that are one worker together; 1: there are no groups.
        carrier: of gradients and weights.
        wire_dtype: in which they travel.
        hosts: of workers that are not on this machine's own network.
    """

    servers: int = 2
    workers: tuple[int, ...] = (4,)
    group_size: int = 1
    carrier: str = carriers.AUTO
    wire_dtype: str = "fp32"
    hosts: tuple[Host, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRates:
    """The learning rates that are tried: each model is reported at its own best one, and at the common one.

    Attributes:
        argument: of the script.
        grid: for every model that has none of its own.
        common: at which all models are compared, too; it is in all grids.
        models: grids of single models.
    """

    argument: str = "--lr"
    grid: tuple[float, ...] = ()
    common: float | None = None
    models: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def of(self, model: str) -> tuple[float | None, ...]:
        """That a model is run with, the common one first; (None,): the script's own."""
        grid = self.models.get(model, self.grid)
        return tuple(sorted(grid, key=lambda lr: (lr != self.common, lr))) or (None,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArguments:
    """Further arguments of the script by model, such as its optimizer's.

    Attributes:
        arguments: for every model that has none of its own.
        models: those of single models.
    """

    arguments: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, model: str) -> tuple[str, ...]:
        """Of one model."""
        return self.models.get(model, self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The goal that a run has to reach.

    Attributes:
        metric: as the script logs it, or its evaluation does.
        value: that is good enough.
        larger_is_better: it must be at least `value`; else at most.
    """

    metric: str
    value: float
    larger_is_better: bool

    def met(self, value: float) -> bool:
        """Whether this is good enough; NaN is not."""
        return value >= self.value if self.larger_is_better else value <= self.value

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.larger_is_better else '<='} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The end of a run, whatever comes first; else when its script ends.

    Attributes:
        time_s: after its first step.
        samples: of all workers together.
        target: that is reached.
        goes_on: the run goes on where the target is reached, so that it has a quality at the end, too.
    """

    time_s: float | None = None
    samples: int | None = None
    target: Target | None = None
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A script that measures weights on held-out data, as a reader of the job.

    Attributes:
        script: from the experiment's folder.
        arguments: its own.
        every_s: how often; a reader's cut holds pushes back, so seldom.
    """

    script: str
    every_s: float
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment as it was read; models are as a person types them.

    Attributes:
        name: of letters, digits, dots, dashes and underscores.
        description: for people, at the top of the report.
        script: that trains, from the experiment's folder.
        arguments: of the script, in every run.
        models: consistency models.
        baselines: `none` (data parallel without servers) and `ddp` (DistributedDataParallel over gloo).
        setup: processes, and how they talk.
        seeds: each is a run of everything.
        seed_argument: of the script; "": the script takes none.
        repeats: of each run with the same seed.
        learning_rates: that are tried.
        optimizer: further arguments by model.
        stop: when a run ends.
        evaluation: on held-out data.
        profiles: how runs are disturbed; each model runs under each.
        record: steps are recorded; without them a report has final figures alone.
        budget_s: after which no further run begins.
    """

    name: str
    script: str
    models: tuple[str, ...]
    description: str = ""
    arguments: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    setup: Setup = Setup()
    seeds: tuple[int, ...] = (0,)
    seed_argument: str = "--seed"
    repeats: int = 1
    learning_rates: LearningRates = LearningRates()
    optimizer: ModelArguments = ModelArguments()
    stop: Stop = Stop()
    evaluation: Evaluation | None = None
    profiles: tuple[Profile, ...] = (Profile(),)
    record: bool = True
    budget_s: float | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        """All that is compared: baselines first."""
        return self.baselines + self.models

    @property
    def reference(self) -> str:
        """The party that the others are compared with: bsp, else a baseline, else the first model."""
        return "bsp" if "bsp" in self.models else self.parties[0]

    def to_json(self) -> dict[str, Any]:
        """All of it, for a fingerprint and for whoever compares two."""
        values = asdict(self)
        return {**values, "profiles": [profile.to_json() for profile in self.profiles]}

    def fingerprint(self) -> str:
        """The same for the same experiment, whatever its description and budget."""
        values = {key: value for key, value in self.to_json().items() if key not in _UNFINGERPRINTED}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def differs_in(self, other: Experiment) -> tuple[str, ...]:
        """Keys in which two experiments are not the same."""
        mine, theirs = self.to_json(), other.to_json()
        return tuple(key for key in mine if key not in _UNFINGERPRINTED and mine[key] != theirs[key])


def read(path: Path) -> tuple[Experiment, str]:
    """The experiment of a file, and the file's text.

    Raises:
        UsageError: the file cannot be read or is no experiment, or a script that it names is no file.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES} bytes: it is no experiment")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no UTF-8 text", file=str(path)) from None
    try:
        experiment = parse(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", **error.facts) from None
    scripts = [("script", experiment.script)]
    if experiment.evaluation is not None:
        scripts.append(("evaluation.script", experiment.evaluation.script))
    for key, script in scripts:
        if not (path.parent / script).is_file():
            raise UsageError(f"{path}: {key}: {path.parent / script} is not a file", key=key)
    return experiment, text


def parse(text: str) -> Experiment:
    """The experiment that a TOML text describes.

    Raises:
        UsageError: it describes none; the key is named, and the nearest valid one.
    """
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"this is no TOML: {error}") from None
    known = {entry.name for entry in fields(Experiment)} - {"setup"} | {entry.name for entry in fields(Setup)}
    section = Section(values, where="", known=sorted(known))
    given = {key: read_(section) for key, read_ in _KEYS.items() if key in section or key in _NEEDED}
    setup = _setup(section)
    parties = given.get("baselines", ()) + given["models"]
    if not parties:
        raise UsageError("models is empty, and there are no baselines: nothing is compared", key="models")
    if "profiles" in section:
        given["profiles"] = _profiles(section, min(setup.workers))
    if "learning_rates" in section:
        given["learning_rates"] = _learning_rates(section.raw("learning_rates"), parties)
    if "optimizer" in section:
        given["optimizer"] = _optimizer(section.raw("optimizer"), parties)
    found = Experiment(setup=setup, **given)
    try:
        found.profiles[0].stragglers(max(found.seeds))
    except UsageError as error:
        raise UsageError(f"seeds: {error.message}", key="seeds") from None
    return found


def _models(section: Section) -> tuple[str, ...]:
    return _distinct(section, "models", tuple(map(_model, section.texts("models"))), empty=True)


def _model(text: str) -> str:
    if text in BASELINES:
        raise UsageError(f"models: {text!r} is a baseline: it belongs to the key baselines", key="models")
    try:
        return str(consistency.parse(text))
    except UsageError as error:
        raise UsageError(f"models: {error.message}", key="models") from None


def _baselines(section: Section) -> tuple[str, ...]:
    for name in section.texts("baselines"):
        if name not in BASELINES:
            raise UsageError(f"baselines: unknown {name!r}; {nearest(name, BASELINES)}", key="baselines")
    return _distinct(section, "baselines", section.texts("baselines"), empty=True)


def _profiles(section: Section, fewest: int) -> tuple[Profile, ...]:
    found = tuple(
        profiles.parse(table, where=f"profiles[{index}]", num_workers=fewest)
        for index, table in enumerate(section.tables("profiles"))
    )
    _distinct(section, "profiles", tuple(profile.name for profile in found))
    return found


def _setup(section: Section) -> Setup:
    given: dict[str, Any] = {}
    if "servers" in section:
        given["servers"] = section.whole("servers", least=1)
    if "workers" in section:
        workers = section.raw("workers")
        if not isinstance(workers, int | list):
            raise section.refused("workers", "a whole number or a list of them", workers)
        whole = isinstance(workers, int)
        found = (section.whole("workers", least=1),) if whole else section.wholes("workers", least=1)
        given["workers"] = _distinct(section, "workers", found)
    if "group_size" in section:
        given["group_size"] = section.whole("group_size", least=1)
    if "carrier" in section:
        given["carrier"] = str(_named("carrier", carriers.parse, section) or carriers.AUTO)
    if "wire_dtype" in section:
        given["wire_dtype"] = str(_named("wire_dtype", wire_dtype.parse, section))
    if "hosts" in section:
        fewest = min(given.get("workers", Setup().workers))
        hosts = tuple(_host(table, index, fewest) for index, table in enumerate(section.tables("hosts")))
        _distinct(section, "hosts", tuple(worker for host in hosts for worker in host.workers))
        given["hosts"] = hosts
    return Setup(**given)


def _named(key: str, parse_: Callable[[str], object], section: Section) -> object:
    try:
        return parse_(section.text(key))
    except UsageError as error:
        raise UsageError(f"{key}: {error.message}", key=key) from None


def _host(values: object, index: int, fewest: int) -> Host:
    section = Section(values, where=f"hosts[{index}]", known=(entry.name for entry in fields(Host)))
    workers = _distinct(section, "workers", section.wholes("workers"))
    if max(workers) >= fewest:
        raise section.refused("workers", f"numbers below {fewest}, the fewest workers of a run", max(workers))
    delay_ms = section.number("delay_ms", least=0.0) if "delay_ms" in section else 0.0
    return Host(
        workers=workers, megabits_per_s=section.number("megabits_per_s", above=0.0), delay_ms=delay_ms
    )


def _learning_rates(values: object, parties: tuple[str, ...]) -> LearningRates:
    section = Section(values, where="learning_rates", known=(entry.name for entry in fields(LearningRates)))
    given: dict[str, Any] = {}
    if "argument" in section:
        given["argument"] = section.text("argument")
    if "grid" in section:
        given["grid"] = _distinct(section, "grid", section.numbers("grid", above=0.0))
    if "models" in section:
        own = Section(section.raw("models"), where="learning_rates.models", known=parties)
        given["models"] = {
            model: _distinct(own, model, own.numbers(model, above=0.0)) for model in parties if model in own
        }
    rates = LearningRates(**given)
    if "common" not in section:
        return rates
    common = section.number("common", above=0.0)
    for model in parties:
        if common not in rates.of(model):
            raise section.refused("common", f"in the grid of every model, also of {model}", common)
    return LearningRates(**given, common=common)


def _optimizer(values: object, parties: tuple[str, ...]) -> ModelArguments:
    section = Section(values, where="optimizer", known=(entry.name for entry in fields(ModelArguments)))
    own = Section(
        section.raw("models") if "models" in section else {}, where="optimizer.models", known=parties
    )
    return ModelArguments(
        arguments=section.texts("arguments") if "arguments" in section else (),
        models={model: own.texts(model) for model in parties if model in own},
    )


def _stop(values: object) -> Stop:
    names = ("time_s", "samples", "metric", "at_least", "at_most", "goes_on")
    section = Section(values, where="stop", known=names)
    given: dict[str, Any] = {}
    if "time_s" in section:
        given["time_s"] = section.number("time_s", above=0.0)
    if "samples" in section:
        given["samples"] = section.whole("samples", least=1)
    bounds = [bound for bound in ("at_least", "at_most") if bound in section]
    if "metric" in section:
        if len(bounds) != 1:
            raise UsageError("stop.metric needs one of stop.at_least and stop.at_most", key="stop.metric")
        given["target"] = Target(
            metric=section.text("metric"),
            value=section.number(bounds[0]),
            larger_is_better=bounds[0] == "at_least",
        )
        given["goes_on"] = "goes_on" in section and section.flag("goes_on")
    elif bounds or "goes_on" in section:
        key = f"stop.{[*bounds, 'goes_on'][0]}"
        raise UsageError(f"{key} needs stop.metric", key=key)
    return Stop(**given)


def _evaluation(values: object) -> Evaluation:
    section = Section(values, where="evaluation", known=(entry.name for entry in fields(Evaluation)))
    return Evaluation(
        script=section.text("script"),
        every_s=section.number("every_s", above=0.0),
        arguments=section.texts("arguments") if "arguments" in section else (),
    )


def _distinct(
    section: Section, name: str, values: tuple[Any, ...], *, empty: bool = False
) -> tuple[Any, ...]:
    if not values and not empty:
        raise section.refused(name, "a list that is not empty", [])
    for value in values:
        if values.count(value) > 1:
            raise UsageError(f"{section.key(name)}: {value!r} stands there twice", key=section.key(name))
    return values


_NEEDED = {"name", "script", "models"}
_KEYS: dict[str, Callable[[Section], Any]] = {
    "name": lambda section: check_job_name(section.text("name")),
    "script": lambda section: section.text("script"),
    "models": _models,
    "baselines": _baselines,
    "description": lambda section: section.text("description", empty=True),
    "arguments": lambda section: section.texts("arguments"),
    "seeds": lambda section: _distinct(section, "seeds", section.wholes("seeds")),
    "seed_argument": lambda section: section.text("seed_argument", empty=True),
    "repeats": lambda section: section.whole("repeats", least=1),
    "record": lambda section: section.flag("record"),
    "budget_s": lambda section: section.number("budget_s", above=0.0),
    "stop": lambda section: _stop(section.raw("stop")),
    "evaluation": lambda section: _evaluation(section.raw("evaluation")),
}
