"""Readers of the jobs of a test."""

from __future__ import annotations

import ps_worker as ps
from tests.component.service import Cluster


def reader_of(cluster: Cluster, job: str) -> ps.Reader:
    return ps.connect(role="reader", servers=cluster.servers, job=job)
