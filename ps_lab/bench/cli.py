"""The commands under `ps-lab bench`. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from ps_lab.outputs import check_file
from ps_wire.errors import UsageError
from ps_wire.frames.carrier import AUTO, VALID, Carrier

if TYPE_CHECKING:
    from ps_lab.bench.setup import JobSetup
    from ps_lab.cluster.network import Link

Made = TypeVar("Made", bound="JobSetup")

app = typer.Typer(
    name="bench",
    help="Measure the project beside its peers and the machine's own limit, in turns, in one run.",
    no_args_is_help=True,
)

Hosts: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="With --carrier tcp: workers and ranks go round so many hosts, each a network namespace.",
        show_default=False,
    ),
]
Apart: TypeAlias = Annotated[
    bool,
    typer.Option("--apart", help="Servers have hosts of their own; else they go round those of workers."),
]
LinkGbps: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="With --carrier tcp: Gbit/s of the link of each host, or of each server, each way.",
        show_default=False,
    ),
]
LinkMs: TypeAlias = Annotated[
    float | None, typer.Option(help="The same: milliseconds under way, each way.", show_default=False)
]


@app.command()
def roundtrip(
    model: Annotated[
        str | None,
        typer.Option(
            help="Shapes of resnet50, gpt2, gpt2-xl, vgg16, dlrm-dense or small-tensors.",
            show_default="resnet50",
        ),
    ] = None,
    shapes: Annotated[
        Path | None, typer.Option(help="Instead: a JSON file, a list of shapes.", show_default=False)
    ] = None,
    num_servers: Annotated[int, typer.Option(min=1, help="Servers (shards).")] = 1,
    num_workers: Annotated[int, typer.Option(min=1, help="Workers, and ranks of the peers.")] = 2,
    carrier: Annotated[str, typer.Option(help=f"One of {VALID}.")] = AUTO,
    wire_dtype: Annotated[
        str, typer.Option(help="Of the project: fp32, bf16 or fp16; the others send float32.")
    ] = "fp32",
    consistency: Annotated[str, typer.Option(help="bsp, bsp:backup=B, ssp:S or asp.")] = "bsp",
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adamw, adagrad or rmsprop.")] = "sgd",
    rounds: Annotated[int, typer.Option(min=1, help="Of each party, without two to warm up.")] = 20,
    hosts: Hosts = None,
    apart: Apart = False,
    link_gbps: LinkGbps = None,
    link_ms: LinkMs = None,
    versus: Annotated[str, typer.Option(help="Peers: gloo,torch-rpc.", show_default="none")] = "",
    limit: Annotated[bool, typer.Option(help="Measure what the machine allows, too.")] = True,
    tls_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PS_TLS_DIR",
            help="With --carrier tcp: certificates; the limit has TLS, too.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there.", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace a few more rounds, and write what took time there.", show_default=False),
    ] = None,
) -> None:
    """Time rounds: every worker pushes the gradient of every parameter and has pulled every new weight.

    Rounds of the project, of each peer and of the machine's limit take turns. --trace writes Chrome's format,
    which Perfetto opens, from a run of its own. With --hosts all of them run behind the same links.

    Exit codes: 0, 1 too little memory or no such hosts here, 64 a value that makes no sense, 130 Ctrl-C, else
    that of the process that failed first.
    """
    from ps_lab.bench import shapes as known  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.bench import traced  # noqa: PLC0415
    from ps_lab.bench.link import parse_link  # noqa: PLC0415
    from ps_lab.bench.peers import PEERS  # noqa: PLC0415
    from ps_lab.bench.report import roundtrip_table  # noqa: PLC0415
    from ps_lab.bench.roundtrip import measure  # noqa: PLC0415
    from ps_lab.bench.setup import Setup, parse_peers  # noqa: PLC0415
    from ps_lab.bench.watcher import showing  # noqa: PLC0415
    from ps_lab.cluster.display import make_console, make_error_console  # noqa: PLC0415
    from ps_wire.spec.consistency import parse  # noqa: PLC0415

    if model is not None and shapes is not None:
        raise UsageError("--model and --shapes exclude each other")
    link = parse_link(link_gbps, link_ms, carrier)
    if link is not None and hosts is None:
        raise UsageError("--link-gbps and --link-ms are links of hosts: add --hosts")
    setup = Setup(
        model=str(shapes) if shapes is not None else model or "resnet50",
        shapes=known.read(shapes) if shapes is not None else known.of_model(model or "resnet50"),
        num_servers=num_servers,
        num_workers=num_workers,
        asked_carrier=carrier,
        consistency=str(parse(consistency)),
        optimizer=optimizer.lower(),
        rounds=rounds,
        peers=parse_peers(versus, tuple(PEERS)),
        with_limit=limit,
        tls_dir=use_tls(tls_dir),
        wire_dtype=wire_dtype,
    )
    check_file(json_file, "--json")
    check_file(trace, "--trace")
    with on_hosts(setup, hosts, link, apart=apart) as setup, showing(make_error_console()) as watcher:
        outcome = measure(setup, watcher)
        events = traced.record(setup, watcher, carrier=outcome.carrier) if trace is not None else None
    console = make_console()
    console.print(roundtrip_table(outcome))
    write_json(json_file, outcome.to_json())
    if trace is not None and events is not None:
        trace.write_text(json.dumps(events) + "\n", encoding="utf-8")
        console.print(
            f"{trace}: {traced.ROUNDS} more rounds, median with the trace on {traced.round_s(events):.4f} s"
        )


@app.command()
def picture(
    trace: Annotated[Path, typer.Argument(help="What `bench roundtrip --trace` wrote.")],
    svg: Annotated[Path, typer.Argument(help="The picture.")],
) -> None:
    """Draw where the time of a traced round goes: a bar per thread, a colour per kind of work.

    Exit codes: 0, 64 a file that cannot be read or written, or that is no such trace.
    """
    from ps_lab.bench.picture import draw, read_trace  # noqa: PLC0415 - not for --help

    text = draw(read_trace(trace))
    check_file(svg, "SVG")
    svg.write_text(text, encoding="utf-8")


@app.command()
def step(
    model: Annotated[
        str,
        typer.Option(
            help="mlp (50 million parameters), cnn, gpt, or waiting: layers that take as long as on an "
            "accelerator, and no core."
        ),
    ] = "mlp",
    split: Annotated[
        int, typer.Option(min=1, help="Parameters that each tensor of the mlp is cut into.")
    ] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a step, of each worker.")] = 64,
    device: Annotated[str, typer.Option(help="On which the models compute: cpu, cuda.")] = "cpu",
    num_servers: Annotated[int, typer.Option(min=1, help="Servers (shards).")] = 1,
    num_workers: Annotated[int, typer.Option(min=1, help="Workers, and ranks of the peer.")] = 2,
    carrier: Annotated[str, typer.Option(help=f"One of {VALID}.")] = AUTO,
    consistency: Annotated[str, typer.Option(help="bsp, bsp:backup=B, ssp:S or asp.")] = "bsp",
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adamw, adagrad or rmsprop.")] = "sgd",
    rounds: Annotated[int, typer.Option(min=1, help="Of four steps each, without two to warm up.")] = 10,
    overlap: Annotated[str, typer.Option(help="on, off or on,off.")] = "on",
    bucket_mb: Annotated[
        str, typer.Option(help="MiB, such as 0,1,5,25,all; 0: a push per parameter.")
    ] = "25",
    ddp_bucket_mb: Annotated[int, typer.Option(min=1, help="Of the peer, MiB; 25 is its default.")] = 25,
    wire_dtype: Annotated[
        str, typer.Option(help="Of the project: fp32, bf16 or fp16; the peer sends float32.")
    ] = "fp32",
    hosts: Hosts = None,
    apart: Apart = False,
    link_gbps: LinkGbps = None,
    link_ms: LinkMs = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there.", show_default=False)
    ] = None,
) -> None:
    """Time training steps: compute alone, the project, and DistributedDataParallel over gloo.

    They take turns of four steps; further values of --overlap and --bucket-mb are further rows. With --hosts
    all of them run behind the same links; through a slow link without it, the last one is left out.

    Exit codes: 0, 1 no such link or no such hosts here, 64 a value that makes no sense, 130 Ctrl-C, else that
    of the process that failed first.
    """
    from ps_lab.bench.link import parse_link  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.bench.report import step_table  # noqa: PLC0415
    from ps_lab.bench.step import StepSetup, measure, parse_variants  # noqa: PLC0415
    from ps_lab.bench.watcher import showing  # noqa: PLC0415
    from ps_lab.cluster.display import make_console, make_error_console  # noqa: PLC0415
    from ps_wire.spec.consistency import parse  # noqa: PLC0415

    setup = StepSetup(
        model=model,
        split=split,
        batch_size=batch_size,
        device=device,
        num_servers=num_servers,
        num_workers=num_workers,
        asked_carrier=carrier,
        consistency=str(parse(consistency)),
        optimizer=optimizer.lower(),
        rounds=rounds,
        variants=parse_variants(overlap, bucket_mb),
        ddp_bucket_mb=ddp_bucket_mb,
        link=parse_link(link_gbps, link_ms, carrier),
        wire_dtype=wire_dtype,
    )
    check_file(json_file, "--json")
    with on_hosts(setup, hosts, setup.link, apart=apart) as setup, showing(make_error_console()) as watcher:
        outcome = measure(setup, watcher)
    make_console().print(step_table(outcome))
    write_json(json_file, outcome.to_json())


@contextmanager
def on_hosts(setup: Made, count: int | None, link: Link | None, *, apart: bool) -> Iterator[Made]:
    """The setup with so many hosts that are network namespaces, gone after the block; None: as it is.

    This process goes on inside a namespace, from its beginning, where it is in none.

    Raises:
        UsageError: it makes no sense.
        BenchFailed: there can be no namespaces here.
    """
    from ps_lab.cluster import network  # noqa: PLC0415 - as above

    if count is None:
        if apart:
            raise UsageError("--apart is about hosts: add --hosts")
        yield setup
        return
    network.check(count)
    if setup.asked_carrier != Carrier.TCP:
        raise UsageError(f"between hosts goes TCP: add --carrier tcp, not {setup.asked_carrier}")
    network.enter(link)
    more = setup.num_servers if apart else 0
    with network.network(count + more, link) as hosts:
        yield replace(setup, hosts=hosts[:count], server_hosts=hosts[count:] or hosts)


def use_tls(folder: Path | None) -> str | None:
    """Has everything that is started connect with these certificates, as we do when we ask servers."""
    if folder is None:
        return None
    os.environ["PS_TLS_DIR"] = found = str(folder.absolute())
    return found


def write_json(path: Path | None, figures: dict[str, Any]) -> None:
    """Writes the figures, if a file was named."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
