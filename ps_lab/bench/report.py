"""Tables for people of what a bench has measured."""

from __future__ import annotations

from rich.table import Table

from ps_lab.bench import limit
from ps_lab.bench.carriers import carrier_text
from ps_lab.bench.roundtrip import PROJECT, RoundtripOutcome
from ps_lab.bench.step import ALONE, DDP, StepOutcome
from ps_wire.spec.wire_dtype import WireDtype


def roundtrip_table(outcome: RoundtripOutcome) -> Table:
    """A row per party."""
    setup = outcome.setup
    table = Table(
        title=_title(outcome),
        title_justify="left",
        caption="a round: every worker pushes every gradient and has pulled every new weight; project / it: "
        "ratio of medians; GB/s each way and CPU seconds per GB: of all workers and all processes of the row",
        caption_justify="left",
    )
    table.add_column("")
    for header in ("median s", "p90 s", "project / it", "GB/s each way", "CPU s / GB"):
        table.add_column(header, justify="right")
    limits = {limit.NAME: _limit_text(outcome), limit.ONE_PASS: "one pass over memory"}
    limits = {name: f"the machine's limit ({text})" for name, text in limits.items()}
    for name in outcome.rounds:
        summary, cpu_s = outcome.summary(name), outcome.cpu_s_per_gb(name)
        table.add_row(
            limits.get(name, name),
            f"{summary.median:.4f}",
            f"{summary.p90:.4f}",
            "" if name == PROJECT else f"{outcome.ratio(name):.2f}",
            f"{setup.bytes_per_round / 2 / summary.median / 1e9:.2f}",
            "" if cpu_s is None else f"{cpu_s:.2f}",
        )
    return table


def step_table(outcome: StepOutcome) -> Table:
    """A row per party: compute alone, the project in its variants, DistributedDataParallel."""
    setup = outcome.setup
    table = Table(
        title=f"{setup.model}: {outcome.parameters:,} parameters in {outcome.tensors} tensors, batch "
        f"{setup.batch_size}; servers {setup.num_servers}, workers {setup.num_workers}, {setup.consistency}, "
        f"{setup.optimizer}, {carrier_text(outcome.carrier, setup.asked_carrier)}, {setup.rounds} rounds"
        + ("" if setup.link is None else f", through a link of {setup.link.text}"),
        title_justify="left",
        caption="seconds per training step; beyond: less those of compute alone; / DDP: against "
        "DistributedDataParallel over gloo with the fused optimizer; hidden: the share of what is added "
        "without overlap that overlap hides",
        caption_justify="left",
    )
    table.add_column("")
    for header in ("median s", "p90 s", "beyond s", "/ DDP", "hidden"):
        table.add_column(header, justify="right")
    hidden = {variant.name: outcome.hidden(variant) for variant in setup.variants}
    for name in outcome.rounds:
        summary = outcome.summary(name)
        beyond = "" if name == ALONE else f"{outcome.beyond_s(name):.4f}"
        ratio = None if name in (ALONE, DDP) else outcome.ratio(name)
        share = hidden.get(name)
        table.add_row(
            {ALONE: "compute alone", DDP: "DDP (gloo)"}.get(name, name),
            f"{summary.median:.4f}",
            f"{summary.p90:.4f}",
            beyond,
            "" if ratio is None else f"{ratio:.2f}",
            "" if share is None else f"{share:.0%}",
        )
    return table


def _title(outcome: RoundtripOutcome) -> str:
    setup = outcome.setup
    tls = "" if setup.tls_dir is None else " with TLS"
    rounded = "" if setup.wire_dtype == WireDtype.FP32 else f", the project's in {setup.wire_dtype}"
    return (
        f"{setup.model}: {setup.parameters:,} parameters in {len(setup.shapes)} tensors, "
        f"{setup.weight_bytes / 1e6:,.1f} MB{rounded}; "
        f"servers {setup.num_servers}, workers {setup.num_workers}, {setup.consistency}, {setup.optimizer}, "
        f"{carrier_text(outcome.carrier, setup.asked_carrier)}{tls}, "
        f"{setup.rounds} rounds"
    )


def _limit_text(outcome: RoundtripOutcome) -> str:
    if outcome.carrier == limit.SHARED_MEMORY:
        return "sum and optimizer" if outcome.setup.consistency == "bsp" else "optimizer and copy"
    if outcome.setup.tls_dir is not None:
        return "TLS sockets"
    return "Unix sockets" if outcome.carrier == "uds" else "TCP sockets"
