"""The options about processes that are one worker, the same for the commands that start them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

GroupSize: TypeAlias = Annotated[
    int,
    typer.Option(envvar="PS_GROUP_SIZE", min=1, help="Processes (ranks) that are one worker together."),
]
PipelineStages: TypeAlias = Annotated[
    int,
    typer.Option(
        envvar="PS_PIPELINE_STAGES",
        min=1,
        help="Processes that are one worker together, each one stage of a pipeline.",
    ),
]
Fresh: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fresh",
        envvar="PS_FRESH",
        help="Each process imports torch anew, instead of being forked from one that has.",
    ),
]
