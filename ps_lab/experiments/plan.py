"""The runs of an experiment, in the order in which they begin.

Seeds are outermost, so that a budget which ends early leaves whole comparisons with fewer seeds. Models are
innermost, so that runs which are compared lie close together in time; who begins changes from seed to seed,
so that a machine that gets slower is nobody's disadvantage. Each run has an id made of all that defines it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ps_lab.experiments.experiment import Evaluation, Experiment, Host, Stop
from ps_lab.experiments.profiles import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The exact configuration of one run.

    Attributes:
        model: consistency model, or a baseline.
        script: from the experiment's folder.
        arguments: all that the script is started with.
        servers: shards.
        workers: number.
        group_size: processes that are one worker together.
        carrier: of gradients and weights.
        wire_dtype: in which they travel.
        hosts: of workers with a link of their own.
        profile: how it is disturbed.
        lr: learning rate; None: the script's own.
        seed: of script and stragglers.
        repeat: number of this run among those with the same seed.
        stop: when it ends.
        evaluation: on held-out data.
        record: steps are recorded.
    """

    model: str
    script: str
    arguments: tuple[str, ...]
    servers: int
    workers: int
    group_size: int
    carrier: str
    wire_dtype: str
    hosts: tuple[Host, ...]
    profile: Profile
    lr: float | None
    seed: int
    repeat: int
    stop: Stop
    evaluation: Evaluation | None
    record: bool

    def to_json(self) -> dict[str, Any]:
        """As `config.json` has it."""
        return {**asdict(self), "profile": self.profile.to_json()}

    @property
    def id(self) -> str:
        """The same for the same configuration; a name that a folder may have."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()
        rate = "" if self.lr is None else f"_lr{self.lr:g}"
        words = f"{self.model}_{self.profile.name}{rate}_w{self.workers}_seed{self.seed}_r{self.repeat}"
        return f"{re.sub(r'[^A-Za-z0-9._-]', '-', words)[:100]}-{digest[:12]}"

    def __str__(self) -> str:
        rate = "" if self.lr is None else f", lr {self.lr:g}"
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.model}, {self.profile.name}, {self.workers} workers{rate}, seed {self.seed}{repeat}"


def runs(experiment: Experiment) -> tuple[Run, ...]:
    """All runs, in order; see the module's docstring."""
    return tuple(_ordered(experiment))


def _ordered(experiment: Experiment) -> Iterator[Run]:
    parties = experiment.parties
    positions = max(len(experiment.learning_rates.of(party)) for party in parties)
    for repeat in range(experiment.repeats):
        for index, seed in enumerate(experiment.seeds):
            first = index % len(parties)
            for position in range(positions):
                for workers in experiment.setup.workers:
                    for profile in experiment.profiles:
                        for party in parties[first:] + parties[:first]:
                            rates = experiment.learning_rates.of(party)
                            if position < len(rates):
                                yield _run(experiment, party, rates[position], workers, profile, seed, repeat)


def _run(
    experiment: Experiment,
    party: str,
    lr: float | None,
    workers: int,
    profile: Profile,
    seed: int,
    repeat: int,
) -> Run:
    arguments = [*experiment.arguments, *experiment.optimizer.of(party), *profile.arguments]
    if lr is not None:
        arguments += [experiment.learning_rates.argument, repr(lr)]
    if experiment.seed_argument:
        arguments += [experiment.seed_argument, str(seed)]
    setup = experiment.setup
    return Run(
        model=party,
        script=experiment.script,
        arguments=tuple(arguments),
        servers=setup.servers,
        workers=workers,
        group_size=setup.group_size,
        carrier=setup.carrier,
        wire_dtype=setup.wire_dtype,
        hosts=setup.hosts,
        profile=profile,
        lr=lr,
        seed=seed,
        repeat=repeat,
        stop=experiment.stop,
        evaluation=experiment.evaluation,
        record=experiment.record,
    )
