"""Parts of a worker and of a wrapped optimizer that no script sees: the one place where tests look inside."""

from __future__ import annotations

from typing import Any

import ps_worker as ps
from ps_worker.data.script_data import ScriptData
from ps_worker.job.job_link import JobLink
from ps_worker.optimizer.arrival import Arrival
from ps_worker.optimizer.table_gradients import TableGradients


def link_of(worker: ps.Worker) -> JobLink:
    """Its link to the job."""
    return worker._link


def data_of(worker: ps.Worker) -> ScriptData:
    """Where its script is in its data."""
    return worker._data


def arrival_of(optimizer: Any) -> Arrival:
    """The weights that it waits for."""
    found: Arrival = optimizer._arrival
    return found


def tables_of(optimizer: Any) -> list[TableGradients]:
    """The gradients of its tables."""
    found: list[TableGradients] = optimizer._tables
    return found


def exchange_of(optimizer: Any) -> Any:
    """The exchange of its first table."""
    return tables_of(optimizer)[0].exchange
