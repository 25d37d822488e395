"""The ranks of a group: which one this process is, as its launcher says.

`ps-worker --nproc`, torchrun and Slurm each say it in variables of their own; where no group is asked for,
none of them is read. It must not know jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ps_wire.errors import UsageError

MAX_SIZE = 1024
# Of each launcher: this process among all that it has started, how many these are, and among its host's.
LAUNCHERS = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))
OWN = "PS_GROUP_RANK", "PS_LOCAL_RANK"  # set by ps-worker --nproc


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The place of this process in its group.

    Attributes:
        rank: from 0; 0 is the leader.
        size: ranks of the group; 1: the worker is this process alone.
        local_rank: among the processes of this host, from 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise UsageError(f"group_size (PS_GROUP_SIZE) must be 1 to {MAX_SIZE}, got {self.size}")
        if not 0 <= self.rank < self.size:
            raise UsageError(f"rank {self.rank} of a group of {self.size}: ranks are numbered from 0")

    @property
    def leads(self) -> bool:
        """Whether this process is the member of the job."""
        return self.rank == 0

    @property
    def together(self) -> bool:
        """Whether there is more than one."""
        return self.size > 1


ALONE = Ranks()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of this process among all workers.

    Attributes:
        ranks: in its group.
        worker: its group's number; None: not known.
        num_workers: groups in all; None: not known.
    """

    ranks: Ranks
    worker: int | None = None
    num_workers: int | None = None


def find(environment: Mapping[str, str], size: int, worker: int | None, rank: int | None = None) -> RankPlace:
    """The place of this process in a group of `size`, as the environment of its launcher has it.

    Args:
        environment: of this process.
        size: of the group, more than 1.
        worker: the number that a person gave this worker, if one did.
        rank: in the group, where the script knows it.

    Raises:
        UsageError: nothing says which rank it is, or what says so does not fit.
    """
    local = _local_rank(environment)
    if rank is None:
        rank = _number(environment, OWN[0])
    if rank is not None:
        return RankPlace(ranks=Ranks(rank=rank, size=size, local_rank=local), worker=worker)
    for name, total, _ in LAUNCHERS:
        at, count = _number(environment, name), _number(environment, total)
        if at is None or count is None:
            continue
        if count % size:
            raise UsageError(
                f"{total} says {count} processes, which groups of {size} (PS_GROUP_SIZE) do not divide: "
                f"start a multiple of {size}"
            )
        if worker is not None and count != size:
            raise UsageError(
                f"worker (PS_WORKER) is {worker}, and {total} says {count} processes: with a number of its "
                f"own, a group is started as {size}; without one, groups are numbered by {name}"
            )
        ranks = Ranks(rank=at % size, size=size, local_rank=local)
        if worker is not None:
            return RankPlace(ranks=ranks, worker=worker)
        return RankPlace(ranks=ranks, worker=at // size, num_workers=count // size)
    raise UsageError(
        f"group_size (PS_GROUP_SIZE) is {size}, and nothing says which rank this process is: start it with "
        f"ps-worker --nproc {size} --group-size {size}, with torchrun (RANK, WORLD_SIZE) or with srun"
    )


def _local_rank(environment: Mapping[str, str]) -> int:
    """The number of this process on its host, of whichever launcher says it; 0: none does."""
    said = (_number(environment, name) for name in (OWN[1], *(here for _, _, here in LAUNCHERS)))
    return next((it for it in said if it is not None), 0)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise UsageError(f"{name} must be a whole number, got {text!r}")
    return int(text)
