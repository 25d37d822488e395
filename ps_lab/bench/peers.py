"""Peers that the project is compared with: the processes that each needs, and the memory they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ps_lab.bench.session import ProcessPlan, run_module
from ps_lab.bench.setup import Setup
from ps_lab.cluster.network import placed
from ps_lab.cluster.ports import free_ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer.

    Attributes:
        plan: its processes for a setup, in the order of their start.
        copies: how many times the weights' bytes all its processes hold at least.
    """

    plan: Callable[[Setup], tuple[ProcessPlan, ...]]
    copies: Callable[[Setup], int]


def _gloo(setup: Setup) -> tuple[ProcessPlan, ...]:
    (port,) = free_ports(1)
    return tuple(
        ProcessPlan(
            name=f"gloo {rank}",
            command=run_module("ps_lab.bench.children.gloo_rank"),
            configuration={
                "rank": rank,
                "world_size": setup.num_workers,
                "host": setup.hosts[0].address,
                "port": port,
                "parameters": setup.parameters,
                "optimizer": setup.optimizer,
            },
            host=placed(setup.hosts, rank),
        )
        for rank in range(setup.num_workers)
    )


def _torch_rpc(setup: Setup) -> tuple[ProcessPlan, ...]:
    (port,) = free_ports(1)
    return tuple(
        ProcessPlan(
            name=f"torch-rpc {rank}",
            command=run_module("ps_lab.bench.children.torch_rpc_rank"),
            configuration={
                "rank": rank,
                "world_size": setup.num_workers + 1,
                "host": setup.server_hosts[0].address,
                "port": port,
                "shapes": setup.shapes,
                "optimizer": setup.optimizer,
            },
            takes_turns=rank > 0,
            host=placed(setup.server_hosts, 0) if rank == 0 else placed(setup.hosts, rank - 1),
        )
        for rank in range(setup.num_workers + 1)
    )


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "gloo": Peer(plan=_gloo, copies=lambda setup: setup.num_workers * (2 + setup.state_slots)),
        "torch-rpc": Peer(
            plan=_torch_rpc, copies=lambda setup: 2 + setup.state_slots + 3 * setup.num_workers
        ),
    }
)
