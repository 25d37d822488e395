"""The options of metrics, the same for every command that shows some."""

from __future__ import annotations

from typing import Annotated

import typer

MetricsPort = Annotated[
    int | None,
    typer.Option(
        envvar="PS_METRICS_PORT",
        min=0,
        max=65535,
        help="Metrics for Prometheus, at /metrics; 0: any free one. Default: there are none.",
    ),
]
MetricsHost = Annotated[str, typer.Option(envvar="PS_METRICS_HOST", help="Address to listen on for metrics.")]
