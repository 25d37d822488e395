"""`connect`: from settings to a worker, or to a reader."""

from __future__ import annotations

import logging
import multiprocessing
import weakref
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, overload

from torch.distributed import ProcessGroup

from ps_wire.errors import JobFull, PsError, UsageError, WorkerNumberTaken
from ps_worker import settings
from ps_worker.group.ddp.ddp_worker import DdpWorker
from ps_worker.group.group import Group
from ps_worker.group.rendezvous import Rendezvous
from ps_worker.job import own_servers
from ps_worker.job.own_servers import OwnServers
from ps_worker.process import console, stopping
from ps_worker.process.after_fork import check_not_forked
from ps_worker.readers.ddp_reader import DdpReader
from ps_worker.readers.reader import Reader
from ps_worker.transport.open_service import open_service
from ps_worker.worker import Worker

logger = logging.getLogger("ps_worker")

_made: weakref.WeakSet[Worker] = weakref.WeakSet()  # by this process; those who live may be in the way


@overload
def connect(
    *,
    role: Literal["reader"],
    servers: str | None = None,
    job: str | None = None,
    connect_limit: float | None = None,
    retry_limit: float | None = None,
    carrier: str | None = None,
    wait: float | None = None,
    token_file: str | PathLike[str] | None = None,
    tls_dir: str | PathLike[str] | None = None,
) -> Reader: ...


@overload
def connect(
    *,
    servers: str | None = None,
    job: str | None = None,
    consistency: str | None = None,
    num_workers: int | str | None = None,
    worker: int | None = None,
    nonfinite: str | None = None,
    role: Literal["worker"] | None = None,
    connect_limit: float | None = None,
    start_limit: float | None = None,
    retry_limit: float | None = None,
    carrier: str | None = None,
    wire_dtype: str | None = None,
    lease: float | None = None,
    token_file: str | PathLike[str] | None = None,
    tls_dir: str | PathLike[str] | None = None,
    record: str | PathLike[str] | None = None,
    log_dir: str | PathLike[str] | None = None,
    on_rollback: Callable[[int], None] | None = None,
    group_size: int | None = None,
    group_reduce: str | None = None,
    insecure_group: bool | None = None,
    process_group: ProcessGroup | None = None,
    pipeline_stages: int | None = None,
    stage: int | None = None,
) -> Worker: ...


def connect(
    *,
    servers: str | None = None,
    job: str | None = None,
    consistency: str | None = None,
    num_workers: int | str | None = None,
    worker: int | None = None,
    nonfinite: str | None = None,
    connect_limit: float | None = None,
    start_limit: float | None = None,
    retry_limit: float | None = None,
    carrier: str | None = None,
    wire_dtype: str | None = None,
    lease: float | None = None,
    wait: float | None = None,
    role: str | None = None,
    token_file: str | PathLike[str] | None = None,
    tls_dir: str | PathLike[str] | None = None,
    record: str | PathLike[str] | None = None,
    log_dir: str | PathLike[str] | None = None,
    on_rollback: Callable[[int], None] | None = None,
    group_size: int | None = None,
    group_reduce: str | None = None,
    insecure_group: bool | None = None,
    process_group: ProcessGroup | None = None,
    pipeline_stages: int | None = None,
    stage: int | None = None,
) -> Any:
    """Joins a job. What is not given comes from `PS_*` environment variables of the same names.

    Args:
        servers: addresses of all shards, in shard order: `HOST:PORT,HOST:PORT`. Without them, or with `none`,
            the worker runs alone, with a server inside this process.
        job: its name; workers of one name train together. Default: "default".
        consistency: `bsp`, `bsp:backup=B`, `ssp:S`, `asp` or `asp:max_delay=R`. Default: bsp.
        num_workers: that the job waits for, or a range "2:8": it starts with two, and up to eight come and
            go. Default: 1.
        worker: this worker's number; default: given by the service.
        nonfinite: what becomes of a gradient that holds NaN or infinity: `error`, its sender gets
            `NonFiniteGradient`, the others go on; `skip`, it is left out; `apply`. Default: error.
        connect_limit: seconds that a server may take to answer at the start.
        start_limit: seconds that the job may take to start.
        retry_limit: seconds that a broken data connection is tried again.
        carrier: of gradients and weights: `shm` (shared memory), `uds` (Unix sockets), `tcp`, `grpc`, or
            `auto`, the first of these that reaches each server. Default: auto.
        wire_dtype: in which float32 gradients and weights travel: `fp32`, as they are; `bf16` or `fp16`,
            rounded to half the bytes, while the servers hold float32. Not over `shm`, where nothing travels.
            Default: fp32.
        lease: seconds without a sign of life from this worker after which the others go on without it. One
            that was only held up (by code that does not let other Python threads run) joins again by itself.
            Default: 10.
        role: "worker", or "reader" for one who reads the weights of a job at any time and is no member.
            A reader takes servers, job, connect_limit, retry_limit, carrier, wait, token_file and tls_dir
            only. Default: worker.
        wait: seconds that a reader waits for its job to be there, and to start. Default: 0.
        token_file: a file with the service's token, or with the job's.
        tls_dir: a folder with `ca.crt`, `tls.crt` and `tls.key`: connections are encrypted, and both ends
            show a certificate. The files are read again when they change.
        record: a folder, in which each incarnation of a worker writes a file with a line per step.
        log_dir: a folder for TensorBoard: what the first worker logs goes there, as a run that is named for
            the job. It needs the package tensorboard.
        on_rollback: called with the number of the step that is taken next when servers lost state, and the
            job went back to a snapshot. Loops over `worker.loader`, in `worker.epochs` or not, go back by
            themselves; where there is no `on_rollback`, the next step of others, such as those with batches
            of their own, raises `RolledBack`. `finish()` raises it anyway.
        group_size: processes (ranks) that are this worker together; see `docs/groups.md`. Which one this
            process is says its launcher: `ps-worker --nproc`, torchrun or srun. Default: 1.
        group_reduce: how they reduce their gradients: `shm`, in shared memory, `gloo`, over loopback or,
            between hosts, the network, `hosts`, on each host first, `nccl`, on GPUs of which each rank has
            one of its own, or `auto`, what is there. Default: auto.
        insecure_group: with `tls_dir`, ranks may be on several hosts, though what they send each other is not
            encrypted. Default: False.
        process_group: a process group that the script has made: its ranks are the worker.
        pipeline_stages: processes that are this worker together, each one stage of a pipeline. Default: 1.
        stage: which one this process is, where no launcher says it.

    Returns:
        The worker, or the reader; use it in a `with` block, so that it leaves when the block ends.

    Raises:
        UsageError: a setting is missing or makes no sense.
        ServerUnreachable: a server does not answer; its address is named.
        JobUnknown: the job of a reader is not there, or has not started in time.
        ConfigurationRefused: the servers or the job refuse; the message says what differs.
    """
    check_not_forked()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "a child process imports the script again and would join the job: put what the script does under "
            'if __name__ == "__main__":'
        )
    size, rank = _size_of(process_group, group_size)
    chosen = settings.read(
        role=role,
        servers=servers,
        job=job,
        consistency=consistency,
        num_workers=num_workers,
        worker=worker,
        nonfinite=nonfinite,
        connect_limit=connect_limit,
        start_limit=start_limit,
        retry_limit=retry_limit,
        carrier=carrier,
        wire_dtype=wire_dtype,
        lease=lease,
        wait=wait,
        token_file=token_file,
        tls_dir=tls_dir,
        record=record,
        log_dir=log_dir,
        group_reduce=group_reduce,
        insecure_group=insecure_group,
        group_size=size,
        group_rank=rank,
        pipeline_stages=pipeline_stages,
        stage=stage,
    )
    if chosen.role == "reader":
        return _reader(chosen)
    if chosen.ddp is not None:
        return DdpWorker(chosen)
    return _worker(chosen, on_rollback, process_group)


def _worker(
    chosen: settings.Settings,
    on_rollback: Callable[[int], None] | None,
    process_group: ProcessGroup | None,
) -> Worker:
    """A worker that has joined; where that is broken off, what had joined leaves."""
    group = own = made = None
    try:
        if chosen.ranks.together:
            group, own, chosen = _form(chosen, process_group)
            if not chosen.ranks.leads:
                chosen = _of_a_rank(chosen, counts=own is not None)
        made = Worker(chosen, on_rollback, group, own)
        _made.add(made)
        return made  # noqa: TRY300 - Ctrl-C may come here, too
    except BaseException as error:
        if made is not None:
            made.give_up(error)
        if group is not None:
            group.leave()
        if own is not None:
            own.close(in_order=False)
        if isinstance(error, (JobFull, WorkerNumberTaken)):
            raise _with_own(error, chosen) from None
        raise


def _reader(chosen: settings.Settings) -> Reader | DdpReader:
    if chosen.ddp is not None:
        return DdpReader(chosen)
    return Reader(chosen if chosen.servers else replace(chosen, servers=own_servers.find(chosen)))


def _of_a_rank(chosen: settings.Settings, *, counts: bool) -> settings.Settings:
    """The settings of a rank above 0; where it does not count as a worker, the leader's figures are."""
    if counts:
        return replace(chosen, metrics_port=None)
    return replace(chosen, metrics_port=None, record=None, log_dir=None, stragglers=settings.NO_STRAGGLERS)


def _size_of(process_group: ProcessGroup | None, group_size: int | None) -> tuple[int | None, int | None]:
    """Size and rank in the group, as far as the script knows them."""
    if process_group is None:
        return group_size, None
    size = process_group.size()
    if group_size not in (None, size):
        raise UsageError(
            f"group_size is {group_size}, and process_group has {size} ranks: leave group_size out"
        )
    return size, process_group.rank() if size > 1 else None


def _form(
    chosen: settings.Settings, process_group: ProcessGroup | None
) -> tuple[Group, OwnServers | None, settings.Settings]:
    """The group of this process, once all ranks have met; its own servers, if any, and where they are."""

    def say(text: str) -> None:
        console.show(logger)
        logger.info("worker %s %s", chosen.worker, text)

    own = None
    if not chosen.servers:
        own = OwnServers(chosen, say)
        chosen = replace(chosen, servers=own.addresses)
    try:
        group = _meet(chosen, process_group, say, hosts_shards=own is not None)
    except BaseException:
        if own is not None:
            own.close(in_order=False)
        raise
    return group, own, chosen


def _meet(
    chosen: settings.Settings,
    process_group: ProcessGroup | None,
    say: Callable[[str], None],
    *,
    hosts_shards: bool,
) -> Group:
    service = open_service(chosen, say)
    try:
        assert chosen.worker is not None
        met = Rendezvous(
            service.coordinator,
            chosen.ranks,
            job=chosen.job,
            worker=chosen.worker,
            limit_s=chosen.start_limit_s,
            say=say,
            towards=chosen.servers[0],
            refused=chosen.one_host,
        ).meet()
    finally:
        service.close()
    group = Group(
        chosen.ranks,
        met,
        lease_s=chosen.lease_s,
        reduce=chosen.group_reduce,
        asked=stopping.asked,
        torch_group=process_group,
        pipeline=chosen.pipeline,
        hosts_shards=hosts_shards,
        given=chosen.alike,
    )
    if chosen.ranks.leads:
        size, how = chosen.ranks.size, group.how
        where = ", ".join(dict.fromkeys(met.hosts))
        gpus = "; of tables on GPUs over nccl, there" if group.on_gpus and how != "nccl" else ""
        said = f"group of {size} ranks on {where}: gradients are reduced over {how}, by their owners{gpus}"
        if chosen.pipeline:
            said = f"pipeline of {size} processes on {where}"
        own = f"; each rank has a server in its process: {','.join(chosen.servers)}" if hosts_shards else ""
        say(f"{said}{own}")
    return group


def _with_own(error: JobFull | WorkerNumberTaken, chosen: settings.Settings) -> PsError:
    """The same refusal; if it is this process that is in the way, it says so."""
    own = sorted(worker.rank for worker in _made if worker.is_in(chosen))
    if chosen.worker is not None:
        own = [rank for rank in own if rank == chosen.worker]
    if not own:
        return error
    return type(error)(
        f"{error.message}; this very process is worker {', '.join(map(str, own))}: worker.leave(), "
        "or the end of its with block, ends that",
        **error.facts,
    )
