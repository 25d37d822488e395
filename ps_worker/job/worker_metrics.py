"""The metrics of one worker for a scrape: figures that it has at hand, of no server.

`text` runs on the thread of the endpoint, takes no lock but those of the figures, and changes nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Protocol

from ps_wire.metrics.families import WORKER
from ps_worker.data.script_data import ScriptData
from ps_worker.job.job_link import JobLink
from ps_worker.settings import Settings

MOST_LOGGED = 64  # names, as many as the coordinator takes of a worker


class _Abstaining(Protocol):
    @property
    def abstained(self) -> int: ...


class _Counted(Protocol):
    """The steps of the worker's script."""

    @property
    def step(self) -> int: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def optimizers(self) -> Sequence[_Abstaining]: ...
    @property
    def data(self) -> ScriptData: ...
    @property
    def link(self) -> JobLink: ...


class WorkerMetrics:
    """The metrics of a worker."""

    def __init__(self, settings: Settings, steps: _Counted) -> None:
        """Of a worker that has joined."""
        self._settings = settings
        self._steps = steps

    def text(self) -> bytes:
        """All of them now, in the text format."""
        from ps_wire.metrics.page import Page  # noqa: PLC0415 - prometheus_client: most workers show none

        page, steps, settings = Page(WORKER), self._steps, self._settings
        link, exchanges = steps.link, tuple(steps.link.exchanges)
        whose = (settings.job, link.rank)
        page.put("ps_worker_info", 1, *whose, settings.consistency, platform.node())
        page.put("ps_worker_steps_total", steps.step, *whose)
        page.put("ps_worker_samples_total", steps.data.samples, *whose)
        page.put("ps_worker_waited_seconds_total", steps.waited_s, *whose)
        page.put("ps_worker_bytes_total", sum(it.bytes_pushed for it in exchanges), *whose, "out")
        page.put("ps_worker_bytes_total", sum(it.in_flight.bytes_pulled for it in exchanges), *whose, "in")
        abstained = sum(optimizer.abstained for optimizer in tuple(steps.optimizers))
        page.put("ps_worker_abstained_total", abstained, *whose)
        page.put("ps_worker_missed_total", sum(it.in_flight.missed for it in exchanges), *whose)
        page.put(
            "ps_worker_version_spread_updates",
            max((it.in_flight.spread for it in exchanges), default=0),
            *whose,
        )
        page.put("ps_worker_incarnation", link.incarnation, *whose)
        for name, value in sorted(steps.metrics.items())[:MOST_LOGGED]:
            page.put("ps_worker_logged", value, *whose, name)
        return page.text()
