"""The machine's own limit for a carrier: raw sockets for those that send, the memory's speed for `shm`."""

from __future__ import annotations

import sys
import uuid

from ps_lab.bench.session import ProcessPlan, run_module
from ps_lab.bench.setup import Setup
from ps_lab.bench.shapes import ITEM_BYTES
from ps_lab.cluster.ports import HOST, free_ports

NAME = "limit"
ONE_PASS = "one pass"  # noqa: S105 - over the memory
ONE_PASS_OPTIMIZERS = ("sgd", "adam", "adamw")  # that the compiled kernels know
SHARED_MEMORY = "shm"
CONNECTIONS = 1  # of a worker to each server, as the project has


def plan(setup: Setup, carrier: str) -> tuple[ProcessPlan, ...]:
    """The processes that measure it."""
    return _memory(setup) if carrier == SHARED_MEMORY else _sockets(setup, carrier)


def one_pass(setup: Setup, carrier: str) -> tuple[ProcessPlan, ...]:
    """The process that does a round of `shm` in one pass over the memory; none where that is not possible."""
    if not _passes(setup, carrier):
        return ()
    from ps_wire.process import kernels  # noqa: PLC0415 - torch comes with it

    return () if kernels.KERNELS is None else _memory(setup, name=ONE_PASS, one_pass=True)


def kernel(setup: Setup) -> tuple[ProcessPlan, ...]:
    """The process that measures the optimizer's kernel alone, on all cores."""
    return _memory(setup, alone=True)


def copies(setup: Setup) -> int:
    """How many times the weights' bytes they hold at least, whichever carrier it comes to."""
    memory = 2 + setup.state_slots + setup.num_workers
    passes = memory if _passes(setup, setup.asked_carrier) else 0
    return min(memory, 1 + 3 * setup.num_workers) + passes


def _passes(setup: Setup, carrier: str) -> bool:
    return carrier == SHARED_MEMORY and setup.consistency == "bsp" and setup.optimizer in ONE_PASS_OPTIMIZERS


def _memory(
    setup: Setup, *, name: str = NAME, alone: bool = False, one_pass: bool = False
) -> tuple[ProcessPlan, ...]:
    configuration = {
        "parameters": setup.parameters,
        "workers": setup.num_workers,
        "optimizer": setup.optimizer,
        "bsp": setup.consistency == "bsp",
        "alone": alone,
        "one_pass": one_pass,
    }
    command = run_module("ps_lab.bench.children.memory_limit")
    return (ProcessPlan(name=name, command=command, configuration=configuration),)


def _sockets(setup: Setup, carrier: str) -> tuple[ProcessPlan, ...]:
    addresses = _unix(setup.num_servers) if carrier == "uds" else _tcp(setup.num_servers)
    command = run_module("ps_lab.bench.children.socket_limit")
    share = -(-setup.parameters // (setup.num_servers * CONNECTIONS)) * ITEM_BYTES
    servers = [
        ProcessPlan(
            name=f"{NAME} server {index}",
            command=command,
            configuration={
                "role": "server",
                "address": address,
                "bytes": share,
                "connections": setup.num_workers * CONNECTIONS,
                "tls_dir": setup.tls_dir,
            },
            takes_turns=False,
        )
        for index, address in enumerate(addresses)
    ]
    workers = [
        ProcessPlan(
            name=f"{NAME} worker {index}",
            command=command,
            configuration={
                "role": "worker",
                "addresses": addresses * CONNECTIONS,
                "bytes": share,
                "tls_dir": setup.tls_dir,
            },
        )
        for index in range(setup.num_workers)
    ]
    return (*servers, *workers)


def _tcp(count: int) -> list[object]:
    return [(HOST, port) for port in free_ports(count)]


def _unix(count: int) -> list[object]:
    """Abstract names where there are any: they leave no file behind."""
    start = "\0" if sys.platform == "linux" else "/tmp/"  # noqa: S108  # unlinked once all are connected
    return [f"{start}ps-bench-{uuid.uuid4()}" for _ in range(count)]
