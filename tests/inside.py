"""Parts of a worker and of a wrapped optimizer that no script sees: the one place where tests look inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ps_worker as ps
from ps_worker.data.script_data import ScriptData
from ps_worker.job.job_link import JobLink
from ps_worker.optimizer.arrival import Arrival
from ps_worker.optimizer.sender import Sender
from ps_worker.optimizer.step_cycle import StepCycle
from ps_worker.optimizer.table_gradients import TableGradients
from ps_worker.steps import Steps


def steps_of(worker: ps.Worker) -> Steps:
    """Its steps, over all that takes some."""
    return worker._steps


def link_of(worker: ps.Worker) -> JobLink:
    """Its link to the job."""
    return steps_of(worker).link


def sender_of(optimizer: Any) -> Sender:
    """What sends its gradients."""
    found: Sender = optimizer._sender
    return found


def cycle_of(optimizer: Any) -> StepCycle:
    """Where in a step it is."""
    found: StepCycle = optimizer._cycle
    return found


def data_of(worker: ps.Worker) -> ScriptData:
    """Where its script is in its data."""
    return worker._data


def arrival_of(optimizer: Any) -> Arrival:
    """The weights that it waits for."""
    return cycle_of(optimizer).arrival


def tables_of(optimizer: Any) -> Sequence[TableGradients]:
    """The gradients of its tables."""
    return sender_of(optimizer).tables


def exchange_of(optimizer: Any) -> Any:
    """The exchange of its first table."""
    return tables_of(optimizer)[0].exchange
