"""Readers of the jobs of a test."""

from __future__ import annotations

import time
from collections.abc import Callable

import ps_worker as ps

from .service import Cluster


def reader_of(cluster: Cluster, job: str) -> ps.Reader:
    return ps.connect(role="reader", servers=cluster.servers, job=job)


def wait_until(true: Callable[[], bool], limit_s: float = 5.0) -> None:
    until_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.005)
