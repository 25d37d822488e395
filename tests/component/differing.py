"""Two workers that bring different things, and the one of them that hears so."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import ps_worker as ps
from ps_lab.jobs import calls
from ps_wire.access.access import OPEN
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S


def refused(cluster: Cluster, bring: Callable[[ps.Worker], object]) -> ps.ConfigurationRefused:
    """What the second of two workers is refused with; the first waits for it, until their job is dropped."""
    job, joined = fresh_name(), threading.Barrier(2, timeout=LIMIT_S)

    def body(worker: ps.Worker) -> ps.PsError:
        joined.wait()
        with pytest.raises(ps.PsError) as caught:
            bring(worker)
        if isinstance(caught.value, ps.ConfigurationRefused):
            calls.drop(cluster.servers.split(",")[0], job, OPEN, force=True)
        return caught.value

    errors = run_workers(cluster, body, num_workers=2, job=job)
    (error,) = [it for it in errors if isinstance(it, ps.ConfigurationRefused)]
    return error
