"""The metrics of servers and workers by name: kind, labels, and meaning in one sentence. Values only.

`docs/metrics.md` has the same tables, and dashboard and rules use no other names; tests compare them. A label
never holds what a peer may choose freely, but for names of jobs and of logged metrics, which are checked
where they come in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """The kinds of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: as queries have it; a counter's ends in `_total`, a histogram's gets `_bucket` and so on.
        kind: of it.
        labels: of each of its series, in order.
        meaning: in one sentence.
    """

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_JOB = ("shard", "ps_job")
_TABLE = (*_JOB, "table")
_MEMBER = ("ps_job", "worker")

SHARD = (
    Family("ps_server_info", _G, ("shard", "num_shards", "version", "protocol"), "1; which server this is"),
    Family("ps_server_ready", _G, ("shard",), "1 while the server takes part in its service, else 0"),
    Family("ps_num_shards", _G, ("shard",), "servers that the service has"),
    Family("ps_tables", _G, ("shard",), "tables that the shard holds, of all jobs"),
    Family("ps_members", _G, _JOB, "workers that gates count"),
    Family("ps_rounds_total", _C, _TABLE, "optimizer steps taken, of the partition that is furthest"),
    Family("ps_version_spread_updates", _G, _TABLE, "newest minus oldest version over partitions"),
    Family(
        "ps_pushes_total",
        _C,
        (*_TABLE, "outcome"),
        "pushes per partition: received, of these applied, dropped, abstained; beside them duplicate ones, "
        "refused ones that were not taken, and missed ones that were never sent",
    ),
    Family("ps_pulls_total", _C, _TABLE, "pulls per partition that were answered with weights"),
    Family("ps_apply_seconds", _H, _TABLE, "time of an optimizer step on one partition, with the mean"),
    Family("ps_gate_wait_seconds", _H, _TABLE, "time that a pull of one partition waited at the gate"),
    Family("ps_staleness_updates", _H, _TABLE, "version staleness (tau) of each push that was applied"),
    Family(
        "ps_clock_gap_steps", _H, _TABLE, "clock gap that each push made: steps ahead of the slowest member"
    ),
    Family(
        "ps_staleness_bound_updates",
        _G,
        _JOB,
        "what tau cannot exceed with these members: 0 under bsp, (2s+1)(N-1) under ssp, the limit of asp "
        "where it has one; no series where there is none",
    ),
    Family("ps_clock_steps", _G, (*_TABLE, "extreme"), "smallest and largest clock of a member"),
    Family(
        "ps_member_clock_steps", _G, (*_TABLE, "worker"), "clock of a member, the smallest over partitions"
    ),
    Family("ps_weight_bytes", _G, _TABLE, "memory of weights"),
    Family("ps_optimizer_bytes", _G, _TABLE, "memory of optimizer state"),
    Family("ps_reserved_bytes", _G, _JOB, "memory of a job's tables as it counts against the limit"),
    Family("ps_memory_limit_bytes", _G, ("shard",), "--memory-limit; no series where there is none"),
    Family("ps_resident_bytes", _G, ("shard",), "memory of the process that is in RAM"),
    Family("ps_cpu_seconds_total", _C, ("shard",), "processor time of the process"),
    Family(
        "ps_carrier_bytes_total",
        _C,
        ("shard", "carrier", "direction"),
        "payload of gradients (in) and weights (out), also where it is shared and does not travel",
    ),
    Family("ps_connections", _G, ("shard", "carrier"), "data connections of workers and readers"),
    Family("ps_queued_bytes", _G, ("shard", "carrier"), "what waits until workers read it"),
    Family("ps_refused_total", _C, ("shard", "what"), "frames, connections and calls that were refused"),
    Family(
        "ps_events_total",
        _C,
        (*_JOB, "kind"),
        "what happened to a job: retry, restore and lose on every shard, all other kinds on shard 0",
    ),
    Family(
        "ps_left_out", _G, ("shard", "what"), "jobs and workers beyond those that have series of their own"
    ),
)
COORDINATOR = (
    Family("ps_job_info", _G, ("ps_job", "consistency", "state"), "1; the state of a job"),
    Family("ps_job_wanted_workers", _G, ("ps_job",), "workers that the job was made for"),
    Family("ps_job_workers", _G, ("ps_job", "state"), "workers of a job by state"),
    Family("ps_member_steps_total", _C, _MEMBER, "steps of a worker, as of its last heartbeat"),
    Family("ps_member_samples_total", _C, _MEMBER, "samples that its loaders have handed out"),
    Family("ps_member_waited_seconds_total", _C, _MEMBER, "time that it waited for weights in step()"),
    Family("ps_member_heartbeat_age_seconds", _G, _MEMBER, "time since the coordinator heard of it"),
    Family(
        "ps_member_lease_left_seconds",
        _G,
        _MEMBER,
        "time until it is evicted if nothing more is heard of it; no series where it has no lease",
    ),
    Family("ps_member_stalled", _G, _MEMBER, "1 while it has waited for others for more than 5 s, else 0"),
    Family(
        "ps_snapshot_age_seconds",
        _G,
        ("ps_job",),
        "time since the last complete snapshot, of jobs that run; before the first, since this process "
        "first saw the job",
    ),
    Family("ps_snapshot_duration_seconds", _G, ("ps_job",), "time that the last complete snapshot took"),
    Family("ps_snapshot_bytes", _G, ("ps_job",), "size of the last complete snapshot"),
    Family(
        "ps_snapshot_limit_seconds",
        _G,
        ("ps_job",),
        "age at which a snapshot is too old: three times --snapshot-every and a minute; an hour where that "
        "counts steps, or none are taken by themselves",
    ),
    Family("ps_snapshots_total", _C, ("ps_job", "outcome"), "snapshots that were taken, and that failed"),
)
WORKER = (
    Family("ps_worker_info", _G, (*_MEMBER, "consistency", "host"), "1; which worker this is"),
    Family("ps_worker_steps_total", _C, _MEMBER, "steps that it has taken"),
    Family("ps_worker_samples_total", _C, _MEMBER, "samples that its loaders have handed out"),
    Family(
        "ps_worker_waited_seconds_total", _C, _MEMBER, "time from the last push to the last weight of steps"
    ),
    Family(
        "ps_worker_bytes_total",
        _C,
        (*_MEMBER, "direction"),
        "payload of gradients (out) and weights (in), also where it is shared and does not travel",
    ),
    Family("ps_worker_abstained_total", _C, _MEMBER, "steps in which it had no gradient to push"),
    Family("ps_worker_missed_total", _C, _MEMBER, "steps that it skipped, for others had gone on without it"),
    Family("ps_worker_version_spread_updates", _G, _MEMBER, "newest minus oldest version in its last pull"),
    Family("ps_worker_incarnation", _G, _MEMBER, "grows each time that it joins"),
    Family("ps_worker_logged", _G, (*_MEMBER, "name"), "the latest value of each worker.log(...)"),
)
SERVER = SHARD + COORDINATOR
