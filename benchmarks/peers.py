"""Peers that need environments of their own, which `make bench-peers` makes: MXNet and TensorFlow.

PS_BENCH_MXNET_PYTHON and PS_BENCH_TENSORFLOW_PYTHON name other interpreters.
"""

from __future__ import annotations

import os
from pathlib import Path

from ps_lab.bench.peers import PEERS, Peer
from ps_lab.bench.session import ProcessPlan
from ps_lab.bench.setup import Setup
from ps_lab.cluster.ports import HOST, free_ports
from ps_lab.errors import BenchFailed
from ps_wire.errors import UsageError

HERE = Path(__file__).resolve().parent
VARIABLES = {"mxnet": "PS_BENCH_MXNET_PYTHON", "tensorflow": "PS_BENCH_TENSORFLOW_PYTHON"}
OPTIMIZERS = {"mxnet": ("sgd", "adam", "adagrad"), "tensorflow": ("sgd",)}


def find_python(peer: str) -> Path | None:
    """The interpreter of a peer's environment, if it is installed."""
    named = os.environ.get(VARIABLES[peer])
    path = Path(named) if named else HERE.parent / f".venv-{peer}" / "bin" / "python"
    return path.absolute() if path.exists() else None


def _python(peer: str, setup: Setup) -> str:
    if setup.optimizer not in OPTIMIZERS[peer]:
        raise UsageError(f"{peer} is measured with {', '.join(OPTIMIZERS[peer])}, not {setup.optimizer}")
    found = find_python(peer)
    if found is None:
        raise BenchFailed(f"{peer} is not installed: run `make bench-peers`, or set {VARIABLES[peer]}")
    return str(found)


def _mxnet(setup: Setup) -> tuple[ProcessPlan, ...]:
    python = _python("mxnet", setup)
    (port,) = free_ports(1)
    environment = {
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_NODE_HOST": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": str(setup.num_servers),
        "DMLC_NUM_WORKER": str(setup.num_workers),
        "PYTHONPATH": str(HERE.parent),
    }
    roles = ["scheduler"] + ["server"] * setup.num_servers
    servers = [
        ProcessPlan(
            name=f"mxnet {role} {index}",
            command=(python, "-c", "import mxnet"),  # serves as DMLC_ROLE says, for ever
            takes_turns=False,
            environment=environment | {"DMLC_ROLE": role},
        )
        for index, role in enumerate(roles)
    ]
    workers = [
        ProcessPlan(
            name=f"mxnet worker {index}",
            command=(python, str(HERE / "mxnet_worker.py")),
            configuration={"shapes": setup.shapes, "optimizer": setup.optimizer},
            environment=environment | {"DMLC_ROLE": "worker"},
        )
        for index in range(setup.num_workers)
    ]
    return (*servers, *workers)


def _tensorflow(setup: Setup) -> tuple[ProcessPlan, ...]:
    python = _python("tensorflow", setup)
    ports = [f"{HOST}:{port}" for port in free_ports(setup.num_servers + setup.num_workers + 1)]
    cluster = {
        "chief": ports[:1],
        "ps": ports[1 : 1 + setup.num_servers],
        "worker": ports[1 + setup.num_servers :],
    }
    roles = [(role, index) for role in ("ps", "worker", "chief") for index in range(len(cluster[role]))]
    return tuple(
        ProcessPlan(
            name=f"tensorflow {role} {index}",
            command=(python, str(HERE / "tensorflow_process.py")),
            configuration={"role": role, "index": index, "cluster": cluster, "shapes": setup.shapes},
            takes_turns=role == "chief",
            environment={"PYTHONPATH": str(HERE.parent)},
        )
        for role, index in roles
    )


ALL_PEERS: dict[str, Peer] = {
    **PEERS,
    "mxnet": Peer(plan=_mxnet, copies=lambda setup: 2 + 3 * setup.num_workers),
    "tensorflow": Peer(plan=_tensorflow, copies=lambda setup: 1 + setup.num_workers),
}
