"""A group without servers: each rank runs the shard of its number in its own process."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from ps_lab.cluster.process_handle import ProcessHandle
from ps_lab.traces import put_together
from ps_wire.v1.shard_pb2 import TablesRequest
from ps_worker.transport.grpc_service import GrpcService

from . import going_on
from .processes import Start, run

pytestmark = pytest.mark.integration

STEPS = 4
LEASE = "--lease", "60"  # a rank that is silent for half of it ends its group
GOES_ON = str(Path(going_on.__file__))
SCRIPT = """
import sys, torch, ps_worker as ps
folder, steps = sys.argv[1], int(sys.argv[2])
with ps.connect() as worker:
    torch.manual_seed(worker.group_rank)
    model = torch.nn.Sequential(torch.nn.Linear(96, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32))
    optimizer = worker.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    weights = lambda: [it.detach().clone() for it in model.parameters()]
    rows = [(None, weights())]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 96)).square().mean().backward()
        given = [it.grad.clone() for it in model.parameters()]
        optimizer.step()
        rows.append((given, weights()))
    if worker.is_first:
        torch.save(optimizer.state_dict(), folder + "/optimizer.pt")
        print("trained", worker.group_size, flush=True)
        open(folder + "/looked").read()
    worker.finish()
    torch.save(rows, f"{folder}/{worker.group_rank}.pt")
"""


def test_ranks_without_servers_share_one_optimizer_and_each_has_its_part_of_the_state(
    spawn: Start, tmp_path: Path
) -> None:
    """Bit for bit one process with the mean in rank order; and the state that is saved is that process's."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    os.mkfifo(tmp_path / "looked")
    traces = tmp_path / "traces"
    traces.mkdir()

    command = spawn(
        *("ps-worker", "--servers", "none", "--nproc", "2", str(script), str(tmp_path), str(STEPS)),
        PS_TRACE=str(traces),
    )
    addresses = command.wait_line(r"reduced over shm.* in its process: (\S+)")[1].split(",")
    command.wait_line("^trained 2")
    service = GrpcService(addresses)
    state_bytes = [
        sum(table.optimizer_bytes for table in service.shard(rank).Tables(TablesRequest()).tables)
        for rank in range(2)
    ]
    service.close()
    (tmp_path / "looked").write_text("")
    assert command.wait_end() == 0, command.text

    rows = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    weight_bytes = sum(it.nbytes for it in rows[0][0][1])
    assert state_bytes == pytest.approx([2 * weight_bytes / 2] * 2, rel=0.1)  # Adam has two tensors
    ours = [torch.nn.Parameter(it.clone()) for it in rows[0][0][1]]
    optimizer = torch.optim.Adam(ours, lr=0.01, fused=True)
    for mine, theirs in zip(rows[0], rows[1], strict=True):
        if mine[0] is not None:
            for parameter, first, second in zip(ours, mine[0], theirs[0], strict=True):
                parameter.grad = (first + second) / 2
            optimizer.step()
        for expected, *found in zip(ours, mine[1], theirs[1], strict=True):
            assert all(torch.equal(expected.detach(), it) for it in found)
    events = put_together(traces)["traceEvents"]
    names = [it["args"]["name"] for it in events if it["name"] == "process_name"]
    assert names == ["worker 0 rank 0", "worker 0 rank 1"]
    saved = torch.load(tmp_path / "optimizer.pt")
    for index, state in optimizer.state_dict()["state"].items():
        assert re.fullmatch("exp_avg exp_avg_sq step", " ".join(sorted(saved["state"][index])))
        for name, value in state.items():
            assert torch.equal(saved["state"][index][name].float(), value.float()), name


def test_a_job_without_servers_that_was_killed_goes_on_from_its_snapshot_to_the_same_bits(
    spawn: Start, tmp_path: Path
) -> None:
    """Each rank with its own generators, buffers, and what it has registered."""
    snapshots = ("--snapshot-dir", str(tmp_path / "snapshots"), "--snapshot-every", "5steps", *LEASE)
    group = ("ps-worker", "--servers", "none", "--nproc", "2")

    killed = spawn(*group, *snapshots, GOES_ON, str(tmp_path), "dies")
    assert killed.wait_end() == 137, killed.text
    again = spawn(*group, *snapshots, GOES_ON, str(tmp_path), "more")
    assert again.wait_end() == 0, again.text
    steps = going_on.steps_of(tmp_path)
    assert steps > going_on.MORE
    undisturbed = spawn(*group, GOES_ON, str(tmp_path), str(steps))
    assert undisturbed.wait_end() == 0, undisturbed.text

    for rank in range(2):
        going_on.check_same(tmp_path, 0, rank)


def test_one_process_without_servers_is_refused_snapshots_by_name(spawn: Start, tmp_path: Path) -> None:
    alone = spawn("ps-worker", "--servers", "none", "--snapshot-dir", str(tmp_path), GOES_ON, "", "1")

    assert alone.wait_end() == 64
    assert "which takes no snapshots" in alone.text


ENDLESS = """
import os, torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(64, 64)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(10**6):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        if step == 5:
            os.write(1, f"rank {worker.group_rank} {os.getpid()}\\n".encode())
"""


TORCHRUNS = """
import os, sys, torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(96, 256)
    optimizer = worker.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 96)).square().mean().backward()
        optimizer.step()
    worker.finish()
    place = worker.group_rank, worker.group_size, worker.local_rank
    torch.save((place, model.weight.detach()), f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


def test_ranks_that_torchrun_starts_meet_at_its_own_store(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCHRUNS)

    command = run(
        *("/usr/bin/env", "PS_SERVERS=none", "PS_GROUP_SIZE=2", "OMP_NUM_THREADS=1", sys.executable),
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), str(tmp_path)),
    )

    assert command.wait_end() == 0, command.text
    ends = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert [place for place, _ in ends] == [(rank, 2, rank) for rank in range(2)]
    assert torch.equal(ends[0][1], ends[1][1])


@pytest.mark.fault
def test_where_a_rank_is_killed_with_its_server_the_others_end_and_say_so(
    spawn: Start, tmp_path: Path
) -> None:
    """The other one has the coordinator, and waits for no answer of the shard that is gone."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    command = spawn("ps-worker", "--servers", "none", "--nproc", "2", *LEASE, str(script))
    pids = dict(command.wait_line(r"^rank (\d) (\d+)").groups() for _ in range(2))

    ProcessHandle(int(pids["1"])).send(signal.SIGKILL)

    assert command.wait_end() == 137
    assert re.search("GroupBroken: rank 1.* has gone", command.text), command.text
