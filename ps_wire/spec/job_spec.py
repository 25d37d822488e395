"""A job's description, as a member brings it: checked once, where it comes in."""

from __future__ import annotations

import math

from ps_wire.errors import UsageError
from ps_wire.spec import consistency, nonfinite
from ps_wire.spec.address import check_job_name
from ps_wire.v1 import spec_pb2

MAX_WORKERS = 65_536
MAX_LEASE_S = 86_400.0


def check_spec(wanted: spec_pb2.Job) -> spec_pb2.Job:
    """The job that a message names, with its texts as they are compared.

    Raises:
        UsageError: a name, a model, a number of workers or a choice that there is not.
    """
    if not max(wanted.min_workers, 1) <= wanted.num_workers <= MAX_WORKERS:
        raise UsageError(f"--num-workers must be in 1..{MAX_WORKERS}, got {wanted.num_workers}")
    return spec_pb2.Job(
        name=check_job_name(wanted.name),
        consistency=str(consistency.parse(wanted.consistency)),
        num_workers=wanted.num_workers,
        min_workers=wanted.min_workers,
        nonfinite=nonfinite.parse(wanted.nonfinite or "error"),
    )


def check_lease(lease_s: float) -> float:
    """Seconds of a lease; 0: it never ends. Raises `UsageError`."""
    if not 0.0 <= lease_s <= MAX_LEASE_S or math.isnan(lease_s):
        raise UsageError(f"--lease must be in 0..{MAX_LEASE_S:g} seconds, got {lease_s}")
    return lease_s
