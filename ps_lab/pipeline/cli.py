"""The commands under `ps-lab pipeline`. What is heavy is imported by the command that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ps_lab.outputs import check_file
from ps_wire.errors import UsageError

app = typer.Typer(
    name="pipeline", help="Pipelines of stages: look at one before it runs.", no_args_is_help=True
)


@app.callback()
def commands() -> None:
    """Else a single command would have no name."""


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="FILE:FUNCTION; it gives the model, or the model and a batch of inputs.", show_default=False
        ),
    ],
    stages: Annotated[int, typer.Option(help="How many the model is cut into.")],
    schedule: Annotated[
        str, typer.Option(help="gpipe, 1f1b, interleaved1f1b, zero-bubble or zero-bubble-v.")
    ] = "1f1b",
    microbatches: Annotated[int, typer.Option(help="That a batch is cut into.")] = 8,
    by: Annotated[
        str | None,
        typer.Option(
            help="The cost that stages share evenly: time, memory or parameters.",
            show_default="time; parameters without a batch",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="In place of --by: the first module of a stage; given for each but the first.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Processes; schedules with several stages on each take a multiple.",
            show_default="a stage on each, or two",
        ),
    ] = None,
    optimizer_states: Annotated[
        int,
        typer.Option(
            min=0, help="Numbers that the optimizer keeps per parameter in a stage; 0: servers keep them."
        ),
    ] = 0,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the schedule there, as SVG.", show_default=False)
    ] = None,
) -> None:
    """Cut a model into stages, and show what each costs and when it is idle.

    Blocks are run on this machine, one after the other, with one micro-batch of the example:

        ps-lab pipeline plan model.py:build --stages 4 --schedule 1f1b --microbatches 8 --by time

    Exit codes: 0, 64 a value that makes no sense, 78 a model that cannot be cut so.
    """
    if at and by is not None:
        raise UsageError("--at says where stages begin, and --by lets it be computed: give one of them")
    check_file(picture, "--picture")
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.pipeline import display  # noqa: PLC0415
    from ps_lab.pipeline.picture import draw  # noqa: PLC0415
    from ps_lab.pipeline.planning import load, planned  # noqa: PLC0415
    from ps_worker.pipeline.schedules import SCHEDULES  # noqa: PLC0415

    made, batch = load(model)
    several = schedule in SCHEDULES and SCHEDULES[schedule].several
    found = planned(
        made,
        batch,
        stages=stages,
        ranks=ranks or (max(1, stages // 2) if several else stages),
        schedule=schedule,
        microbatches=microbatches,
        by=by or ("time" if batch else "parameters"),
        at=at or (),
        optimizer_states=optimizer_states,
    )
    console = make_console()
    console.print(display.stages(found))
    for line in (*display.schedule(found, console.width), "", *display.bubble(found)):
        console.print(line, soft_wrap=True)
    if picture is not None:
        picture.write_text(draw(found), encoding="utf-8")
        console.print(f"the schedule is drawn in {picture}", soft_wrap=True)
