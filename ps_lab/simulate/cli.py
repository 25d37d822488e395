"""`ps-lab simulate`: what a person types, as setups; what is heavy is imported when it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ps_wire.errors import UsageError

if TYPE_CHECKING:
    from ps_lab.simulate.costs import Costs
    from ps_lab.simulate.engine import Learner, Setup, SimulatedRun
    from ps_lab.simulate.summary import Summary


class Learn(StrEnum):
    """The kinds of model that can be trained."""

    NOTHING = "nothing"
    LOGISTIC = "logistic"
    MLP = "mlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The training, if there is any, and how it is done."""

    kind: Learn
    lr: float
    momentum: float
    batch_size: int

    def learner(self, setup: Setup, lr: float | None = None) -> Learner | None:
        """For one run."""
        if self.kind is Learn.NOTHING:
            return None
        from ps_lab.simulate.learning import ModelKind, SgdLearner, digits  # noqa: PLC0415

        return SgdLearner(
            ModelKind(self.kind.value),
            digits(),
            num_workers=setup.num_workers,
            num_partitions=setup.num_partitions,
            batch_size=self.batch_size,
            lr=self.lr if lr is None else lr,
            momentum=self.momentum,
            delay=setup.delay,
            seed=setup.seed,
        )


def simulate(
    experiment: Annotated[
        Path | None,
        typer.Argument(
            help="An experiment of ps-lab compare; without one, the options say what runs.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs of EXPERIMENT, as of ps-lab compare.", show_default=False),
    ] = None,
    consistency: Annotated[
        list[str] | None,
        typer.Option(help="bsp, bsp:backup=B, ssp:S or asp; may be given again.", show_default="bsp"),
    ] = None,
    num_workers: Annotated[int, typer.Option(help="Workers.")] = 4,
    num_servers: Annotated[int, typer.Option(help="Servers (shards).")] = 1,
    partitions: Annotated[int, typer.Option(help="Of the table, on each server.")] = 1,
    steps: Annotated[int, typer.Option(help="Of each worker.")] = 1000,
    seconds: Annotated[
        float | None,
        typer.Option(help="Virtual time that ends a run, in place of --steps.", show_default=False),
    ] = None,
    straggler: Annotated[
        str, typer.Option(envvar="PS_STRAGGLER", help="Who is slow, as transient:p=0.1,f=4.")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Of stragglers, compute times and training.")] = 0,
    compute_ms: Annotated[float, typer.Option(help="Of a step, without stragglers.")] = 50.0,
    table_mb: Annotated[float, typer.Option(help="Gradients of a step, and its weights.")] = 0.0,
    latency_ms: Annotated[float, typer.Option(help="One way.")] = 0.0,
    link_gbit_s: Annotated[float, typer.Option(help="A worker's link, each way.")] = math.inf,
    server_gbit_s: Annotated[float, typer.Option(help="A server's link, each way.")] = math.inf,
    take_gb_s: Annotated[float, typer.Option(help="At which a server takes gradients in.")] = math.inf,
    apply_gb_s: Annotated[float, typer.Option(help="At which an optimizer step runs.")] = math.inf,
    control_ms: Annotated[float, typer.Option(help="From a server to the coordinator, one way.")] = 0.0,
    lease: Annotated[float, typer.Option(help="Seconds after which a dead worker is evicted.")] = 10.0,
    cores: Annotated[
        float,
        typer.Option(
            help="That workers and servers share; their costs are then processor time. 0: a core each."
        ),
    ] = 0.0,
    costs_from: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of records of a real run (PS_RECORD), or of a run of ps-lab compare, from which "
            "costs are fitted; may be given again.",
            show_default=False,
        ),
    ] = None,
    learn: Annotated[
        Learn, typer.Option(help="A small model on scanned digits, or nothing.")
    ] = Learn.NOTHING,
    lr: Annotated[float, typer.Option(help="Of SGD.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.0,
    batch_size: Annotated[int, typer.Option(help="Samples of a step.")] = 16,
    simulate_staleness: Annotated[
        int, typer.Option(help="Steps by which each gradient is late, under bsp.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per run, for programs.")] = False,
) -> None:
    """Run consistency models in virtual time: throughput, staleness and waits, without a cluster.

    Gates, state machines and the choice of backup workers are the servers' own; workers, links and servers
    cost what the options, or a recorded run, say:

        ps-lab simulate --consistency ssp:3 --num-workers 1000 --straggler transient:p=0.1,f=4

    Exit codes: 0, 64 a value that makes no sense.
    """
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.simulate.costs import Costs  # noqa: PLC0415

    rates = {"link-gbit-s": link_gbit_s, "server-gbit-s": server_gbit_s}
    rates |= {"take-gb-s": take_gb_s, "apply-gb-s": apply_gb_s}
    for name, rate in rates.items():
        if not rate > 0.0:
            raise UsageError(f"--{name} must be > 0, got {rate:g}")
    costs, origin = (
        Costs(
            compute_s=((compute_ms / 1e3,),),
            num_bytes=_bytes(table_mb),
            latency_s=latency_ms / 1e3,
            worker_bytes_per_s=link_gbit_s * 1e9 / 8,
            server_bytes_per_s=server_gbit_s * 1e9 / 8,
            take_s_per_byte=1e-9 / take_gb_s,
            apply_s_per_byte=1e-9 / apply_gb_s,
            control_s=control_ms / 1e3,
            lease_s=lease,
            cores=cores,
        ),
        "costs as given" + (f", on {cores:g} cores" if cores else ", each worker with a core of its own"),
    )
    if costs_from:
        costs, origin = _fitted(costs_from, costs)
    training = Training(kind=learn, lr=lr, momentum=momentum, batch_size=batch_size)
    console = make_console()
    if (experiment is None) != (out is None):
        raise UsageError("an experiment needs --out, a folder for its runs, and --out needs an experiment")
    if experiment is not None and out is not None:
        defaults = (costs, steps, simulate_staleness, origin)
        _experiment(experiment, out, training, defaults, lambda line: console.print(line, highlight=False))
        return
    summaries = [
        _run(setup, training)
        for setup in _setups(
            consistency or ["bsp"],
            straggler,
            num_workers=num_workers,
            num_shards=num_servers,
            partitions_per_shard=partitions,
            num_steps=steps if seconds is None else None,
            limit_s=seconds,
            costs=costs,
            batch_size=batch_size,
            delay=simulate_staleness,
            seed=seed,
        )
    ]
    if as_json:
        print("\n".join(json.dumps(summary.to_json()) for summary in summaries))
        return
    from ps_lab.simulate.summary import table  # noqa: PLC0415

    console.print(table(f"{num_workers} workers, stragglers: {straggler}, {origin}", summaries))


def _bytes(megabytes: float) -> int:
    if not 0.0 <= megabytes < math.inf:
        raise UsageError(f"--table-mb must be >= 0 and finite, got {megabytes:g}")
    return int(megabytes * 1e6)


def _setups(models: list[str], straggler: str, *, seed: int, **values: Any) -> list[Setup]:
    from ps_lab.simulate.engine import Setup  # noqa: PLC0415
    from ps_wire.spec import consistency, stragglers  # noqa: PLC0415

    profile = stragglers.parse(straggler)
    if not profile.seed:
        profile = replace(profile, seed=seed)
    return [
        Setup(consistency=consistency.parse(model), stragglers=profile, seed=seed, **values)
        for model in models
    ]


def _run(setup: Setup, training: Training) -> Summary:
    from ps_lab.simulate.engine import Simulation  # noqa: PLC0415
    from ps_lab.simulate.summary import summarized  # noqa: PLC0415

    return summarized(Simulation(setup, training.learner(setup)).run())


def _fitted(folders: list[Path], given: Costs) -> tuple[Costs, str]:
    """The costs of recorded runs, and where they are from; what their records do not say is as given."""
    from ps_lab.simulate import fit, measured  # noqa: PLC0415

    recordings, runs = measured.read(folders)
    origin = f"costs fitted from {', '.join(map(str, folders))}"
    if not given.cores:
        fitted = fit.fit(recordings)
        origin += ", each worker with a core of its own"
    elif len(runs) == len(folders) and all(run.has_processor_times for run in runs):
        fitted = fit.fit_on_shared_cores(runs, given.cores)
        origin += f", all processes on {fitted.cores:.2f} of {given.cores:g} cores"
    else:
        raise UsageError(
            "--cores with --costs-from needs runs of ps-lab compare that have recorded processor times: name "
            "their folders, as out/runs/RUN"
        )
    return replace(fitted, lease_s=given.lease_s, control_s=given.control_s), origin


def _experiment(
    path: Path,
    out: Path,
    training: Training,
    defaults: tuple[Costs, int, int, str],
    say: Callable[[str], None],
) -> None:
    from ps_lab.compare.folder import Folder  # noqa: PLC0415
    from ps_lab.experiments import experiment as experiments  # noqa: PLC0415
    from ps_lab.simulate import experiment_runs  # noqa: PLC0415
    from ps_lab.simulate.summary import summarized  # noqa: PLC0415

    experiment, text = experiments.read(path)
    costs, num_steps, delay, origin = defaults

    def tell(run: object, outcome: SimulatedRun) -> None:
        it = summarized(outcome)
        say(f"{run}: {it.steps_per_s:.1f} steps/s, tau {it.tau.mean:.2f}, at the gate {it.split['gate']:.0%}")

    experiment_runs.simulate(
        Folder.make(out, experiment, text),
        path.parent / experiment.script,
        experiment_runs.Defaults(
            costs=costs, num_steps=num_steps, batch_size=training.batch_size, delay=delay, origin=origin
        ),
        learner=lambda run, setup: training.learner(setup, run.lr),
        tell=tell,
    )
    for party in experiment.baselines:
        say(f"{party} has no servers: it is not simulated")
