"""The GPUs of a group's ranks: whether each rank has one of its own, for NCCL connects no two ranks on one.

They are counted and named without being touched: a process that has not used one can still fork. It must not
know tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

from ps_worker.group.channel import Channel
from ps_worker.group.hosts import Hosts

KIND = "cuda"  # of torch's devices, those of ROCm too


def here(environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """The names of the GPUs that this process sees, by torch's number; the same on all processes of a host.

    None where torch has no NCCL.
    """
    if not dist.is_nccl_available():
        return ()
    count = torch.cuda.device_count()
    listed = [it.strip() for it in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if it.strip()]
    return (listed or list(map(str, range(count))))[:count]


def of(values: Iterable[torch.Tensor]) -> torch.device | None:
    """The GPU that all of these are on; None: there is none."""
    found = {it.device for it in values}
    device = found.pop() if len(found) == 1 else None
    return device if device is not None and device.type == KIND else None


def lacking(channel: Channel, hosts: Hosts, seen: Sequence[str]) -> str:
    """Says which ranks cannot have GPUs of their own; "": all can. All ranks call it, and get the same.

    Args:
        channel: to the other ranks.
        hosts: of the ranks.
        seen: names of the GPUs that this rank sees.
    """
    said = [one.fields.get("gpus") or () for one in channel.share("GPUs of ranks", {"gpus": list(seen)})]
    for ranks in hosts.ranks:
        for rank in ranks:
            if not said[rank]:
                return f"rank {rank} sees no GPU, or its torch was built without NCCL"
        count = len(set().union(*(map(str, said[rank]) for rank in ranks)))
        if count < len(ranks):
            return f"ranks {', '.join(map(str, ranks))} are on one host, and see {count} GPUs"
    return ""


def shared(channel: Channel, hosts: Hosts, table: int, name: str | None) -> str:
    """Says which ranks cannot reduce a table on GPUs of their own; "": all can. See `lacking`.

    Args:
        channel: to the other ranks.
        hosts: of the ranks.
        table: its number, for people.
        name: of the GPU that the table is on here; None: it is on none.
    """
    said = [one.fields.get("gpu") for one in channel.share(f"the GPU of table {table}", {"gpu": name})]
    by_gpu: dict[tuple[int, str], int] = {}
    for rank, gpu in enumerate(said):
        if not isinstance(gpu, str):
            return f"its parameters are not all on one GPU of rank {rank}"
        other = by_gpu.setdefault((hosts.of(rank), gpu), rank)
        if other != rank:
            return f"ranks {other} and {rank} have it on one GPU: use cuda:{{worker.local_rank}}"
    return ""
