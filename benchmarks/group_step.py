"""Steps of groups of ranks beside those of workers and of DistributedDataParallel, in turns.

    python benchmarks/group_step.py --what own --rounds 5

Prints one JSON line. `--what` is one of:

    own    two ranks without servers (`--servers none --nproc 2`), over shm and gloo, with overlap and in
           `step()`, and two ranks of DDP over gloo with the fused optimizer: Adam, seconds a step. And the
           optimizer's state that each rank holds, in parts of an equal share
    push   a group of two ranks and a single worker, on one host over shared memory, resnet50, with
           `--optimizer`: seconds from gradients that are there, in the memory that is pushed, to the weights
           of the next step
    shm    the same two with forward and backward: seconds a step beyond the same processes that only compute
    link   two groups of two ranks and four workers, two servers behind links of `--link-gbps`: likewise; all
           of them overlap with backward, and groups also without
    bytes  payload that each rank of a group of two has pushed in a step, as the servers count it, in parts of
           an equal share of the model
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ps_lab.bench import link as links
from ps_lab.bench import shapes
from ps_lab.bench.parties import Party, interleave
from ps_lab.bench.session import ProcessPlan, Session, run_module
from ps_lab.bench.step import ALONE, DDP, LIMIT_S, STEPS
from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.host import LOCAL
from ps_lab.cluster.network import Link
from ps_lab.cluster.ports import free_ports
from ps_wire.v1.shard_pb2 import TablesRequest
from ps_worker.job import own_servers
from ps_worker.settings import STORE
from ps_worker.transport.grpc_service import GrpcService

RANKS = 2
STATE = """
import torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(1024, 1024)
    optimizer = worker.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    if worker.is_first:
        print("state", 2 * sum(it.nbytes for it in model.parameters()), flush=True)
        input()
    worker.finish()
"""
BYTES = """
import torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(2048, 2048)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    sent = [it.pushed for it in worker.stats().ranks] if worker.group_rank == 0 else []
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 2048)).sum().backward()
        optimizer.step()
    worker.synchronize()  # all of the last step have left
    if worker.group_rank == 0:
        share = 4 * sum(it.nbytes for it in model.parameters()) / worker.group_size
        print("shares", *((it.pushed - before) / share for it, before in zip(worker.stats().ranks, sent)))
    worker.finish()
"""


def ranks(
    name: str,
    mode: str,
    count: int,
    optimizer: str,
    environment: Mapping[str, str],
    *,
    workers: int = 0,
    overlap: bool = False,
) -> list[ProcessPlan]:
    """Processes of a party: ranks of groups, or, with `workers`, so many of them alone."""
    (port,) = free_ports(1)
    own: dict[str, object] = {
        "model": "mlp",
        "split": 1,
        "device": "cpu",
        "batch_size": 16,
        "optimizer": optimizer,
        "steps": STEPS,
        "mode": mode,
        "host": LOCAL.address,
        "port": port,
        "world_size": count,
        "overlap": overlap,
        "bucket_mb": "25",
        "ddp_bucket_mb": 25,
    }
    size = 1 if workers else RANKS

    def place(it: int) -> dict[str, str]:
        mine = {"PS_WORKER": str(it // size), "PS_NUM_WORKERS": str(count // size), "PS_JOB": name}
        if size == 1:
            return mine
        return {**mine, "PS_GROUP_SIZE": str(size), "PS_GROUP_RANK": str(it % size), "PS_LOCAL_RANK": str(it)}

    return [
        ProcessPlan(
            name=f"{name} {it}",
            command=run_module("ps_lab.bench.children.step_worker"),
            configuration={**own, "rank": it},
            environment={**environment, **place(it)},
        )
        for it in range(count)
    ]


def pushing(
    name: str, rank: int, size: int, servers: Mapping[str, str], configuration: Mapping[str, object]
) -> ProcessPlan:
    """One of the ranks, so many, of a worker that pushes gradients that are there."""
    group = {"PS_GROUP_SIZE": str(size), "PS_GROUP_RANK": str(rank), "PS_LOCAL_RANK": str(rank)}
    mine = {"PS_WORKER": "0", "PS_NUM_WORKERS": "1", "PS_JOB": name}
    return ProcessPlan(
        name=f"{name} {rank}",
        command=run_module("ps_lab.bench.children.project_worker"),
        configuration=configuration,
        environment={**servers, **mine, **(group if size > 1 else {})},
    )


def own(session: Session, rounds: int) -> dict[str, object]:
    """See `--what own`."""
    stores, parties = [], []
    for reduce, overlap in itertools.product(("shm", "gloo"), (True, False)):
        listening, address = own_servers.listen()
        stores.append(own_servers.keep_store(listening))
        servers = {"PS_SERVERS": "none", STORE: address, "PS_GROUP_REDUCE": reduce}
        name = reduce if overlap else f"{reduce}-in-step"
        parties.append(start(session, ranks(name, "project", RANKS, "adam", servers, overlap=overlap)))
    parties.append(start(session, ranks(DDP, DDP, RANKS, "adam", {})))
    step_s = measure(session, parties, rounds)
    state = state_shares()
    return {
        "step_s": step_s,
        "ratio": {name: step_s[name] / step_s[DDP] for name in step_s if name != DDP},
        "state_share": max(state),
    }


def push(session: Session, rounds: int, optimizer: str) -> dict[str, object]:
    """See `--what push`."""
    servers = {"PS_SERVERS": ",".join(session.cluster.addresses), "PS_CARRIER": "shm"}
    configuration = {"shapes": shapes.of_model("resnet50"), "optimizer": optimizer}
    parties = [
        start(session, [pushing(name, it, size, servers, configuration) for it in range(size)])
        for name, size in (("worker", 1), ("group", RANKS))
    ]
    session.wait_ready(limit_s=LIMIT_S)
    found = interleave(parties, rounds)
    round_s = {name: statistics.median(it.seconds for it in items) for name, items in found.items()}
    pairs = zip(found["group"], found["worker"], strict=True)
    return {"round_s": round_s, "ratio": statistics.median(a.seconds / b.seconds for a, b in pairs)}


def shm(session: Session, rounds: int) -> dict[str, object]:
    """See `--what shm`."""
    servers = {"PS_SERVERS": ",".join(session.cluster.addresses), "PS_CARRIER": "shm"}
    parties = [
        start(session, ranks("alone-1", ALONE, 1, "sgd", {}, workers=1)),
        start(session, ranks("alone-2", ALONE, RANKS, "sgd", {})),
        start(session, ranks("worker", "project", 1, "sgd", servers, workers=1)),
        start(session, ranks("group", "project", RANKS, "sgd", servers)),
    ]
    step_s = measure(session, parties, rounds)
    beyond_s = {
        "worker": step_s["worker"] - step_s["alone-1"],
        "group": step_s["group"] - step_s["alone-2"],
    }
    return {"step_s": step_s, "beyond_s": beyond_s}


def link(session: Session, rounds: int, gbps: float, data_ports: tuple[int, ...]) -> dict[str, object]:
    """See `--what link`."""
    addresses = session.cluster.addresses
    session.start("link", links.plans(Link(gbps=gbps, ms=0.0), addresses, data_ports), limit_s=LIMIT_S)
    session.wait_ready(limit_s=LIMIT_S)
    servers = {"PS_SERVERS": ",".join(links.through(addresses)), "PS_CARRIER": "tcp"}
    many = 2 * RANKS
    parties = [
        start(session, ranks(ALONE, ALONE, many, "sgd", {})),
        start(session, ranks("workers", "project", many, "sgd", servers, workers=many, overlap=True)),
        start(session, ranks("groups", "project", many, "sgd", servers, overlap=True)),
        start(session, ranks("groups-in-step", "project", many, "sgd", servers)),
    ]
    step_s = measure(session, parties, rounds)
    beyond_s = {name: step_s[name] - step_s[ALONE] for name in step_s if name != ALONE}
    return {"gbps": gbps, "step_s": step_s, "beyond_s": beyond_s}


def start(session: Session, plans: list[ProcessPlan]) -> Party:
    """A party of these processes, which is ready later."""
    return session.start(plans[0].name.rpartition(" ")[0], plans, limit_s=LIMIT_S)


def measure(session: Session, parties: list[Party], rounds: int) -> dict[str, float]:
    """Median seconds a step of each party."""
    session.wait_ready(limit_s=LIMIT_S)
    found = interleave(parties, rounds)
    return {name: statistics.median(it.seconds for it in items) / STEPS for name, items in found.items()}


def state_shares() -> list[float]:
    """The optimizer's state in the process of each of two ranks without servers, in parts of a half."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "state.py"
        script.write_text(STATE)
        words = [command_path("ps-worker"), "--servers", "none", "--nproc", str(RANKS), str(script)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            addresses: list[str] = []
            for line in process.stdout:
                if match := re.search(r"in its process: (\S+)", line):
                    addresses = match[1].split(",")
                if match := re.match(r"state (\d+)", line):
                    service = GrpcService(addresses)
                    held = [service.shard(it).Tables(TablesRequest()).tables for it in range(RANKS)]
                    service.close()
                    process.communicate("\n")
                    half = int(match[1]) / RANKS
                    return [sum(table.optimizer_bytes for table in tables) / half for tables in held]
    raise SystemExit("the ranks have said nothing of their state")


def byte_shares() -> list[float]:
    """What each rank of a group has pushed, in parts of an equal share."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bytes.py"
        script.write_text(BYTES)
        words = [command_path("ps-lab"), "launch", "--num-servers", "2", "--num-workers", "1"]
        words += ["--group-size", str(RANKS), "--carrier", "tcp", str(script)]
        said = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ).stdout
    found = re.search(r"shares (.*)", said)
    assert found is not None, said
    return [float(it) for it in found[1].split()]


def main() -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=("own", "push", "shm", "link", "bytes"), required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimizer", default="sgd", help="of --what push: sgd, adam or adamw")
    parser.add_argument("--link-gbps", type=float, default=1.0)
    options = parser.parse_args()
    if options.what == "bytes":
        print(json.dumps({"share": max(byte_shares())}))
        return
    num_servers = 2 if options.what == "link" else 1
    data_ports = free_ports(num_servers) if options.what == "link" else ()

    def say(name: str, line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr)

    with Session(num_servers=num_servers, on_line=say, data_ports=data_ports) as session:
        if options.what == "link":
            figures = link(session, options.rounds, options.link_gbps, data_ports)
        elif options.what == "push":
            figures = push(session, options.rounds, options.optimizer)
        else:
            figures = {"own": own, "shm": shm}[options.what](session, options.rounds)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
