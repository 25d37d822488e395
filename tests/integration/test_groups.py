"""Groups of ranks over real processes: each is one worker, and has the same bytes on all its ranks."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults import apart
from tests.faults.links import refusal
from tests.faults.restarting import Restarting

from . import going_on, ranks_apart
from .groups import SCRIPT, start_groups, start_rank
from .processes import Process, Start
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

STEPS = 6
LEASE = "--lease", "60"  # a rank that is silent for half of it ends its group
RANKS = [(worker, rank) for worker in range(2) for rank in range(2)]


def rows_of(folder: Path) -> dict[tuple[int, int], list[Any]]:
    """What each rank says of its steps."""
    return {at: torch.load(folder / f"{at[0]}-{at[1]}.pt") for at in RANKS}


def end_all(ranks: list[list[Process]]) -> list[int]:
    """Exit codes, in order."""
    return [rank.wait_end() for group in ranks for rank in group]


def mean(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """In order, of those that are there."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    total = there[0].clone()
    for part in there[1:]:
        total += part
    return total / len(there)


def mean_of(contributions: list[list[torch.Tensor | None]]) -> list[torch.Tensor | None]:
    """Of parameters, over those who have any gradient; one that some of them lack counts as zeros there."""
    have = [one for one in contributions if any(it is not None for it in one)]
    made = []
    for parts in zip(*have, strict=True):
        like = next((part for part in parts if part is not None), None)
        filled = [part if part is not None or like is None else torch.zeros_like(like) for part in parts]
        made.append(mean(filled))
    return made


@pytest.mark.parametrize(
    ("reduce", "carrier", "words"),
    [("gloo", "tcp", ("large", "devices")), ("shm", "auto", ("large", "views", "plain"))],
)
def test_a_step_of_groups_is_the_mean_of_their_means_in_rank_order_to_the_bit(
    spawn: Start, cluster: Servers, tmp_path: Path, reduce: str, carrier: str, words: tuple[str, ...]
) -> None:
    """Over shared memory all ranks of both groups map the weights of a model of this size, too.

    With "views" the gradients of worker 0 lie where the shards read those of both ranks, and stay so; with
    "devices" worker 1 reduces where the gradients are, as on GPUs over NCCL. Else buckets leave while
    backward is running, but for the last one, which no rank has whole; and where weights are not mapped they
    come bucket by bucket, and modules wait for them, from the step after that in which they were watched.
    """
    options = ("--group-reduce", reduce, "--carrier", carrier)
    ranks = start_groups(spawn, cluster, SCRIPT, str(tmp_path), str(STEPS), *words, options=options)
    codes = end_all(ranks)
    assert codes == [0] * 4, "\n".join(rank.text for group in ranks for rank in group)
    assert f"gradients are reduced over {reduce}" in ranks[0][0].text
    assert ("gradients are reduced over nccl" in ranks[1][0].text) == ("devices" in words)

    rows = rows_of(tmp_path)
    overlaps = ["views" not in words] * 2 + ["devices" not in words] * 2
    assert [rows[at][-1]["overlaps"] for at in RANKS] == overlaps
    by_bucket = [rows[at][-1]["under way"] > 1 for at in RANKS]
    assert by_bucket == [carrier == "tcp"] * 2 + [False] * 2
    weights = [torch.nn.Parameter(it.clone()) for it in rows[0, 0][0]["weights"]]
    momentum = 0.0 if "plain" in words else 0.9
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=momentum, fused=True)  # as the servers run it
    for step in range(1, STEPS + 1):
        gradients = {at: rows[at][step]["gradients"] for at in RANKS}
        pushed = [mean_of([gradients[worker, rank] for rank in range(2)]) for worker in range(2)]
        for parameter, gradient in zip(weights, mean_of(pushed), strict=True):
            parameter.grad = gradient
        optimizer.step()
        for at in RANKS:
            for mine, theirs in zip(weights, rows[at][step]["weights"], strict=True):
                assert torch.equal(mine.detach(), theirs), (step, at)
        for rank in range(2) if "views" in words else ():
            for given, left in zip(gradients[0, rank], rows[0, rank][step]["left"], strict=True):
                assert left is given is None or torch.equal(left, given), (step, rank)


def test_ranks_on_two_hosts_take_the_same_steps_and_send_each_link_what_one_rank_would(
    spawn: Start, tmp_path: Path
) -> None:
    """No address but that of the server is named. Of four ranks two are on each host, and sum there first."""
    size = 4
    if (why := refusal()) is not None:
        pytest.skip(why)
    words = apart.command("tests.integration.ranks_apart", str(tmp_path), str(size))
    done = spawn(*words, **apart.ENVIRONMENT)
    assert done.wait_end() == 0, done.text
    found = json.loads(done.lines[-1])
    assert found["codes"] == [0] * size, found["said"]
    assert "gradients are reduced over hosts" in found["said"][0]
    rows = [torch.load(tmp_path / f"0-{rank}.pt") for rank in range(size)]
    weights = [torch.nn.Parameter(it.clone()) for it in rows[0][0]["weights"]]
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9, fused=True)
    for step in range(1, ranks_apart.STEPS + 1):
        for parts in zip(weights, *(row[step]["gradients"] for row in rows), strict=True):
            given = [torch.zeros_like(parts[0]) if it is None else it for it in parts[1:]]
            halves = [sum(it[1:], start=it[0]) for it in (given[: size // 2], given[size // 2 :])]
            parts[0].grad = (halves[0] + halves[1]) / size
        optimizer.step()
        for row in rows:
            assert row[step]["digest"] == rows[0][step]["digest"]
            assert all(map(torch.equal, row[step]["weights"], (it.detach() for it in weights)))
    model_bytes = sum(it.nbytes for it in weights)
    # There: half a model of gradients, and all weights; back: half of gradients, and of what is pushed.
    assert found["there"] < 2.6 * ranks_apart.STEPS * model_bytes, found
    assert found["back"] < 1.4 * ranks_apart.STEPS * model_bytes, found


UNEQUAL = """
import sys, torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, weight=sys.argv[1])
    mine = torch.arange(4.0) + 1 + 10 * (2 * worker.rank + worker.group_rank)
    model(mine[None]).sum().backward()
    optimizer.step()
    worker.finish()
    print("came to", *model.weight[0].tolist(), flush=True)
"""


@pytest.mark.parametrize(("weight", "share"), [("ranks", 2 / 3), ("equal", 1 / 2)])
def test_groups_of_different_size_weigh_as_their_ranks_where_that_is_wanted(
    spawn: Start, cluster: Servers, tmp_path: Path, weight: str, share: float
) -> None:
    """Then the mean is that over all ranks, as it is over all samples where each rank has equally many."""
    script, job = tmp_path / "unequal.py", fresh_job()
    script.write_text(UNEQUAL)
    places = [("0", "2", "0"), ("0", "2", "1"), ("1", "1", "0")]

    ranks = [
        spawn(
            *(*cluster.worker(job), "--num-workers", "2"),
            *(str(script), weight),
            PS_WORKER=worker,
            PS_GROUP_SIZE=size,
            PS_GROUP_RANK=rank,
            PS_LOCAL_RANK=rank,
        )
        for worker, size, rank in places
    ]

    assert [rank.wait_end() for rank in ranks] == [0] * 3, "".join(rank.text for rank in ranks)
    first, second, alone = (torch.arange(4.0) + 1 + 10 * it for it in range(3))
    wanted = -(share * (first + second) / 2 + (1 - share) * alone)
    for rank in ranks:
        said = next(line for line in rank.lines if line.startswith("came to"))
        torch.testing.assert_close(torch.tensor([float(it) for it in said.split()[2:]]), wanted)


SHARES = """
import sys, time, torch, ps_worker as ps
from pathlib import Path
leaves, gone = sys.argv[1] == "leaves", Path(sys.argv[2])

class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        return ((torch.tensor([float(number)]),) for number in range(int(sys.argv[3])))

with ps.connect() as worker:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, weight="ranks")
    data = torch.utils.data.TensorDataset(torch.arange(float(sys.argv[3]))[:, None])
    data = Numbers() if sys.argv[4] == "stream" else data
    loader = worker.loader(data, batch_size=4)
    for epoch in worker.epochs(1 if leaves or sys.argv[1] == "stays" else 3):
        for number, (batch,) in enumerate(loader):
            if leaves and number == 2:
                break
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            print("used", epoch, *batch.flatten().int().tolist(), flush=True)
            until = time.monotonic() + 60
            while sys.argv[1] == "stays" and number == 0 and not gone.exists():
                assert time.monotonic() < until
                time.sleep(0.01)
    if not leaves:
        if worker.group_rank == 0:
            print("accounts", *((it.samples, it.used) for it in worker.stats().epochs))
        worker.finish()
        print("came to", model.weight.item(), flush=True)
if leaves and worker.group_rank == 0:
    gone.touch()
"""


def used_by(ranks: list[Process]) -> dict[int, list[list[int]]]:
    """Epoch -> the batches of these ranks."""
    used: dict[int, list[list[int]]] = {}
    for rank in ranks:
        for line in rank.lines:
            if line.startswith("used"):
                epoch, *samples = map(int, line.split()[1:])
                used.setdefault(epoch, []).append(samples)
    return used


def start_unequal(
    spawn: Start, cluster: Servers, script: Path, consistency: str, words: dict[str, list[str]]
) -> list[Process]:
    """A group of two, which is worker 0, and a worker alone; `words` are for the script, by worker."""
    job = fresh_job()
    return [
        spawn(
            *(*cluster.worker(job), "--num-workers", "2", "--consistency", consistency),
            *(str(script), *words[worker]),
            PS_WORKER=worker,
            PS_GROUP_SIZE=size,
            PS_GROUP_RANK=rank,
            PS_LOCAL_RANK=rank,
        )
        for worker, size, rank in (("0", "2", "0"), ("0", "2", "1"), ("1", "1", "0"))
    ]


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_group_and_a_worker_alone_share_a_loader(
    spawn: Start, cluster: Servers, tmp_path: Path, kind: str
) -> None:
    """Under bsp all have equally many batches, and the weights are those of one process with all of them."""
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    words = ["trains", str(tmp_path / "gone"), "48", kind]

    ranks = start_unequal(spawn, cluster, script, "bsp", {"0": words, "1": words})

    assert [rank.wait_end() for rank in ranks] == [0] * 3, "".join(rank.text for rank in ranks)
    used = used_by(ranks)
    assert list(used) == [0, 1, 2]
    for batches in used.values():
        assert [len(batch) for batch in batches] == [4] * 12
        assert sorted(sample for batch in batches for sample in batch) == list(range(48))
    wanted = -3 * sum(range(48)) / 12  # each step takes the mean of twelve samples
    for rank in ranks:
        came = float(next(line for line in rank.lines if line.startswith("came to")).split()[2])
        assert came == pytest.approx(wanted, rel=1e-5)
    samples = 48 if kind == "map" else 0  # of a stream that is not known
    assert f"accounts ({samples}, 48) ({samples}, 48)" in ranks[0].text, ranks[0].text


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("leaver", ["0", "1"], ids=["the group", "the worker alone"])
def test_what_one_of_another_size_left_over_is_used_once(
    spawn: Start, cluster: Servers, tmp_path: Path, leaver: str, kind: str
) -> None:
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    rest = [str(tmp_path / "gone"), "47", kind]
    words = {worker: ["leaves" if worker == leaver else "stays", *rest] for worker in ("0", "1")}

    ranks = start_unequal(spawn, cluster, script, "asp", words)

    assert [rank.wait_end() for rank in ranks] == [0] * 3, "".join(rank.text for rank in ranks)
    left = used_by([rank for rank in ranks if not any("came to" in line for line in rank.lines)])
    assert [len(batch) for batch in left[0]] == [4] * (4 if leaver == "0" else 2)
    assert sorted(sample for batch in used_by(ranks)[0] for sample in batch) == list(range(47))


CLIPS = """
import torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model, clip_grad_norm=1.0)
    mine = torch.tensor([30.0, 0.0, 0.0, 0.0] if worker.group_rank else [0.0, 0.0, 40.0, 0.0])
    model(mine[None]).sum().backward()
    optimizer.step()
    worker.finish()
    print("came to", *model.weight[0].tolist(), flush=True)
"""


def test_under_asp_a_group_clips_the_mean_of_its_ranks(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    script = tmp_path / "clips.py"
    script.write_text(CLIPS)

    ranks = start_groups(spawn, cluster, str(script), groups=1, consistency="asp")[0]

    assert [rank.wait_end() for rank in ranks] == [0, 0], "".join(rank.text for rank in ranks)
    for rank in ranks:
        said = next(line for line in rank.lines if line.startswith("came to"))
        came_to = [float(it) for it in said.split()[2:]]
        assert came_to == pytest.approx([-0.6, 0.0, -0.8, 0.0], abs=1e-5)  # (15, 20), of length 25


@pytest.mark.parametrize("consistency", ["ssp:1", "asp"])
def test_all_ranks_of_a_group_have_the_same_bytes_at_every_step(
    spawn: Start, cluster: Servers, tmp_path: Path, consistency: str
) -> None:
    ranks = start_groups(spawn, cluster, SCRIPT, str(tmp_path), str(STEPS), "large", consistency=consistency)

    assert end_all(ranks) == [0] * 4
    rows = rows_of(tmp_path)
    for worker in range(2):
        assert 1 < rows[worker, 0][-1]["under way"] == rows[worker, 1][-1]["under way"]  # bucket by bucket
        assert [row["digest"] for row in rows[worker, 0]] == [row["digest"] for row in rows[worker, 1]]
    assert len({rows[at][-1]["digest"] for at in RANKS}) == 1  # the final weights


SHARED_OUT = """
import torch, ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 200))
    cut = ps.BucketOptions(bucket_bytes=256 << 10, partition_bytes=16 << 10)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, buckets=cut)
    nbytes = sum(it.numel() * 4 for it in model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step()
    worker.synchronize()
    if worker.group_rank == 0:
        loaded = nbytes if worker.is_first else 0
        for it in worker.stats().ranks:
            print("rank", it.rank, (it.pushed - (loaded if it.rank == 0 else 0)) / nbytes, it.pulled / nbytes)
    torch.distributed.barrier(worker.group)
    worker.finish()
"""


def test_each_rank_pushes_and_pulls_its_part_of_the_model_itself_and_the_job_knows_workers_alone(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """As the servers count what comes over the wire: 4 pushes, and weights at the start and after each."""
    job, script = fresh_job(), tmp_path / "shared_out.py"
    script.write_text(SHARED_OUT)

    groups = start_groups(spawn, cluster, str(script), job=job, options=("--carrier", "tcp"))

    assert end_all(groups) == [0] * 4, "".join(rank.text for group in groups for rank in group)
    for group in groups:
        told = [list(map(float, line.split()[1:])) for line in group[0].lines if line.startswith("rank ")]
        assert [rank for rank, _, _ in told] == [0, 1]
        assert all(pushed == pytest.approx(4 / 2, rel=0.1) for _, pushed, _ in told)
        assert all(pulled == pytest.approx(5 / 2, rel=0.1) for _, _, pulled in told)
    status = cluster.status(job)
    assert status is not None
    assert [(entry.worker, entry.incarnation) for entry in status.workers] == [(0, 1), (1, 1)]


def test_ranks_with_different_models_are_refused_by_name_on_all_ranks(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    ranks = start_groups(spawn, cluster, SCRIPT, str(tmp_path), "2", "other model", groups=1)[0]

    assert [rank.wait_end() for rank in ranks] == [78, 78]
    for rank in ranks:
        assert "TableMismatch: rank 1 of this group has another model or optimizer than rank 0" in rank.text


def test_a_rank_that_leaves_its_loop_early_is_named_and_nobody_hangs(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    ranks = start_groups(spawn, cluster, SCRIPT, str(tmp_path), "9", "leaves early", groups=1)[0]

    assert [rank.wait_end() for rank in ranks] == [75, 75]
    for rank in ranks:
        assert "rank 0 is at step 3 of table 0, and rank 1 on" in rank.text
        assert "at finish()" in rank.text


def test_a_rank_that_does_not_come_is_named_with_the_host_of_who_came(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    alone = spawn(
        *(*cluster.worker(), "--group-size", "3"),
        *(SCRIPT, str(tmp_path), "1"),
        RANK="1",
        WORLD_SIZE="3",
        PS_START_LIMIT="0.5",
    )

    assert alone.wait_end() == 69
    assert "missing: rank 0, 2 of 3; here: rank 1 on" in alone.text


def test_two_processes_with_one_rank_are_refused(spawn: Start, cluster: Servers, tmp_path: Path) -> None:
    given = {"worker": 0, "rank": 1, "groups": 1, "size": 3, "job": fresh_job()}
    first = start_rank(spawn, cluster, SCRIPT, str(tmp_path), "1", **given)  # type: ignore[arg-type]
    first.wait_line("waits for rank 0, 2")

    second = start_rank(spawn, cluster, SCRIPT, str(tmp_path), "1", **given)  # type: ignore[arg-type]

    assert second.wait_end() == 78
    assert "is rank 1 of this group already" in second.text


DATA = """
import json, sys, torch, ps_worker as ps
from torch.utils.data import TensorDataset
folder, size = sys.argv[1], int(sys.argv[2])
with ps.connect() as worker:
    model = torch.nn.Linear(1, 1)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), model)
    loader = worker.loader(TensorDataset(torch.arange(size).float()[:, None]), batch_size=4, seed=3)
    seen = []
    for epoch in worker.epochs(2):
        for (batch,) in loader:
            seen.append((epoch, batch.flatten().int().tolist()))
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    worker.finish()
    with open(f"{folder}/{worker.rank}-{worker.group_rank}.json", "w") as out:
        json.dump(seen, out)
"""


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
@pytest.mark.parametrize("size", [53, 16, 5])
def test_each_sample_comes_once_an_epoch_and_ranks_have_equally_many_batches(
    spawn: Start, cluster: Servers, tmp_path: Path, consistency: str, size: int
) -> None:
    script = tmp_path / "data.py"
    script.write_text(DATA)

    ranks = start_groups(spawn, cluster, str(script), str(tmp_path), str(size), consistency=consistency)

    assert end_all(ranks) == [0] * 4
    seen = {at: json.loads((tmp_path / f"{at[0]}-{at[1]}.json").read_text()) for at in RANKS}
    for epoch in range(2):
        drawn = [one for at in RANKS for number, batch in seen[at] if number == epoch for one in batch]
        assert sorted(drawn) == list(range(size))
    for worker in range(2):
        assert len(seen[worker, 0]) == len(seen[worker, 1])
        for (_, first), (_, second) in zip(seen[worker, 0], seen[worker, 1], strict=True):
            assert abs(len(first) - len(second)) <= 1
            assert first
            assert second


def test_groups_whose_servers_and_ranks_were_killed_go_on_from_the_snapshot_to_the_same_bits(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Two groups of two: each rank with its own generators, buffers, and what it has registered.

    Going on, they take a rolling restart of both servers in their stride.
    """
    options = "--snapshot-dir", f"{tmp_path}/snapshots", "--snapshot-every", "5steps"
    script, folder, job = str(Path(going_on.__file__)), str(tmp_path), fresh_job()
    servers = Servers(spawn, 1, *options)
    groups = start_groups(spawn, servers, script, folder, "dies", job=job, options=LEASE)
    assert groups[0][1].wait_end() == -9, groups[0][1].text
    for process in (*servers.processes, *groups[0], *groups[1]):
        process.kill()

    restarting = Restarting(spawn, tmp_path / "snapshots", *options[2:])
    (tmp_path / "halts").touch()
    groups = start_groups(spawn, restarting, script, folder, "more", job=job, options=LEASE)
    groups[0][0].wait_line("^halts")
    for shard in range(2):
        restarting.processes[shard].signal(signal.SIGTERM)
        assert restarting.processes[shard].wait_end() == 0
        restarting.again(shard)
    (tmp_path / "goes on").touch()
    assert end_all(groups) == [0] * 4, "".join(rank.text for group in groups for rank in group)
    restarting.close()
    steps = going_on.steps_of(tmp_path)
    assert steps > going_on.MORE
    assert end_all(start_groups(spawn, cluster, script, folder, str(steps))) == [0] * 4

    for worker, rank in RANKS:
        going_on.check_same(tmp_path, worker, rank)


def test_a_group_that_was_killed_goes_on_where_its_job_is_each_rank_with_its_own_generators(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    """Without a snapshot: up to 2 s of steps are computed again, and all draw what they drew then."""
    script, folder, job = str(Path(going_on.__file__)), str(tmp_path), fresh_job()
    killed = start_groups(spawn, cluster, script, folder, "dies at 15", groups=1, job=job, options=LEASE)
    assert killed[0][1].wait_end() == -9
    assert killed[0][0].wait_end() == 75

    again = start_groups(spawn, cluster, script, folder, "more", groups=1, job=job, options=LEASE)
    assert end_all(again) == [0, 0]
    steps = going_on.steps_of(tmp_path)
    assert steps >= 14 + going_on.MORE
    assert end_all(start_groups(spawn, cluster, script, folder, str(steps), groups=1)) == [0, 0]

    for rank in range(2):  # running statistics have seen the weights of now when steps were computed again
        going_on.check_same(tmp_path, 0, rank, but="running_")


LEARNS = """
import sys, torch, ps_worker as ps
from torch.utils.data import TensorDataset
folder, batch_size = sys.argv[1], int(sys.argv[2])
torch.set_default_dtype(torch.float64)  # else how a processor rounds is seen in elements near zero
torch.manual_seed(0)
inputs = torch.randn(64, 6)
with ps.connect() as worker:
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    loader = worker.loader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=batch_size, seed=1)
    for _ in worker.epochs(3):
        for given, wanted in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(given), wanted).backward()
            optimizer.step()
    worker.finish()
    if worker.is_first:
        torch.save([it.detach() for it in model.parameters()], f"{folder}/{worker.group_size}.pt")
"""


def test_a_group_is_close_to_one_worker_with_as_many_times_the_batch(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    script = tmp_path / "learns.py"
    script.write_text(LEARNS)
    alone = spawn(*cluster.worker(), *(str(script), str(tmp_path), "8"))

    ranks = start_groups(spawn, cluster, str(script), str(tmp_path), "4", groups=1)[0]

    assert [it.wait_end() for it in (alone, *ranks)] == [0] * 3
    for mine, theirs in zip(torch.load(tmp_path / "2.pt"), torch.load(tmp_path / "1.pt"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


REFUSED = """
import torch, ps_worker as ps
from ps_wire.errors import GradientChanged, UsageError
with ps.connect() as worker:
    model = torch.nn.Linear(2, 2)
    made = lambda: torch.optim.SGD(model.parameters(), lr=0.1)
    calls = {
        "table": lambda: worker.table({"a": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0)),
        "all_reduce": lambda: worker.all_reduce(1.0),
        "broadcast": lambda: worker.broadcast(1.0),
        "barrier": lambda: worker.barrier(),
    }
    for name, call in calls.items():
        try:
            call()
        except UsageError as error:
            assert "group" in error.message, error
            print("refused", name, flush=True)
    optimizer = worker.wrap(made(), model)
    if worker.group_rank:
        for name, call in {"state": optimizer.state_dict, "stats": worker.stats}.items():
            try:
                call()
            except UsageError as error:
                print("refused", name, flush=True)
    else:
        state = optimizer.state_dict()
        worker.stats()
    torch.distributed.barrier(worker.group)
    optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    scaler = torch.amp.GradScaler("cpu")
    model(torch.ones(1, 2)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # for a figure: nothing is changed
    optimizer.step()
    changes = {
        "scaled": lambda: torch._foreach_mul_([it.grad for it in model.parameters()], 0.5),
        "clipped": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        "unscaled": lambda: scaler.unscale_(optimizer),
    }
    for name, change in changes.items():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        (scaler.scale(loss) if name == "unscaled" else loss).backward()
        change()
        try:
            scaler.step(optimizer) if name == "unscaled" else optimizer.step()
        except (GradientChanged, UsageError) as error:
            assert "In a group of ranks" in error.message or "in a group of ranks" in error.message, error
            assert "clip_grad_norm=" in error.message, error
            print("refused", name, flush=True)
    del optimizer.grad_scale, optimizer.found_inf  # torch's scaler, after an error
    optimizer.zero_grad()
    for _ in range(2):  # what backward adds is no change of the script's
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    added = torch.nn.Parameter(torch.ones(3))
    model.register_parameter("added", added)
    optimizer.add_param_group({"params": [added]})  # a second table, which is stepped behind the first
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 2)).sum() + added.sum()).backward()
        optimizer.step()
    worker.finish()
    print("trained", flush=True)
"""


def test_what_is_not_built_for_groups_is_refused_by_name_and_the_group_goes_on(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)

    ranks = start_groups(spawn, cluster, str(script), groups=1, consistency="asp")[0]

    assert [rank.wait_end() for rank in ranks] == [0, 0], ranks[0].text + ranks[1].text
    names = ["table", "all_reduce", "broadcast", "barrier"]
    said = [[line for line in rank.lines if line.startswith("refused")] for rank in ranks]
    own = ["scaled", "clipped", "unscaled"]
    assert said[0] == [f"refused {name}" for name in [*names, *own]]
    assert said[1] == [f"refused {name}" for name in [*names, "state", "stats", *own]]


MPI = """
import torch, torch.distributed as dist, ps_worker as ps
with ps.connect() as worker:
    group, rank, size = worker.group, worker.group_rank, worker.group_size
    mine = torch.full((4,), float(rank + 1))
    def same(got, want):
        assert torch.equal(torch.as_tensor(got), torch.as_tensor(want)), (got, want)
    one = mine.clone(); dist.broadcast(one, group_src=1, group=group); same(one, torch.full((4,), 2.0))
    parts = [torch.full((2,), float(it)) for it in range(size)] if rank == 0 else None
    got = torch.zeros(2); dist.scatter(got, parts, group_src=0, group=group)
    same(got, torch.full((2,), float(rank)))
    into = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, into, group_dst=0, group=group)
    assert rank or [float(it[0]) for it in into] == [1.0, 2.0]
    into = [torch.zeros(4) for _ in range(size)]; dist.all_gather(into, mine, group=group)
    assert [float(it[0]) for it in into] == [1.0, 2.0]
    into = torch.zeros(2); dist.all_to_all_single(into, mine[:2].contiguous(), group=group)
    same(into, [1.0, 2.0])
    one = mine.clone(); dist.reduce(one, group_dst=0, group=group)
    assert rank or torch.equal(one, torch.full((4,), 3.0))
    one = mine.clone(); dist.all_reduce(one, group=group); same(one, torch.full((4,), 3.0))
    into = torch.zeros(2); dist.reduce_scatter_tensor(into, mine.clone(), group=group); same(into, [3.0, 3.0])
    try:
        torch.nn.SyncBatchNorm(3, process_group=group)(torch.ones(2, 3))
    except ValueError as error:
        print("on the host:", error, flush=True)
    dist.barrier(group)
    print("all", rank, worker.local_rank, worker.is_first, flush=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    several = ps.BucketOptions(first_bucket_bytes=4096, bucket_bytes=8192)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = worker.wrap(sgd, model, overlap=True, buckets=several)
    def meet(gradient):
        if rank == 1:
            raise ValueError("a bug of this rank's")
        dist.all_reduce(gradient.clone(), group=group)
    hidden = model[0](torch.ones(1, 64))
    hidden.register_hook(meet)  # when the second layer's gradients have left
    model[1](hidden).sum().backward()
"""


def test_calls_of_torch_distributed_reach_the_ranks_of_the_group(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    script = tmp_path / "mpi.py"
    script.write_text(MPI)

    ranks = start_groups(spawn, cluster, str(script), groups=1)[0]

    assert [rank.wait_end() for rank in ranks] == [75, 1], ranks[0].text + ranks[1].text
    assert "all 0 0 True" in ranks[0].lines
    assert "all 1 1 False" in ranks[1].lines
    assert "on the host: SyncBatchNorm expected input tensor to be on GPU" in ranks[0].text
    assert "GroupBroken: rank 1 has ended: ValueError: a bug of this rank's" in ranks[0].text


def test_one_command_starts_all_ranks_of_its_groups(spawn: Start, cluster: Servers, tmp_path: Path) -> None:
    started = spawn(
        *cluster.worker(),
        *("--nproc", "4", "--group-size", "2", SCRIPT, str(tmp_path), "3"),
    )

    assert started.wait_end() == 0, started.text
    rows = rows_of(tmp_path)
    assert len({rows[at][-1]["digest"] for at in RANKS}) == 1


def test_a_process_group_of_the_scripts_own_is_the_worker(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import os, torch, torch.distributed as dist, ps_worker as ps\n"
        "os.environ['GLOO_SOCKET_IFNAME'] = 'lo'\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "rank = int(os.environ['RANK'])\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
        "with ps.connect(process_group=dist.group.WORLD) as worker:\n"
        "    assert worker.group is dist.group.WORLD\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "    worker.finish()\n"
        "    print('trained', worker.group_rank, worker.group_size, worker.local_rank)\n"
        "dist.barrier()\n"  # it is the script's still
    )
    job = fresh_job()

    ranks = [
        spawn(
            *(*cluster.worker(job), "--worker", "0"),
            str(script),
            RANK=str(rank),
            WORLD_SIZE="2",
            LOCAL_RANK=str(rank + 4),
        )
        for rank in range(2)
    ]

    assert [rank.wait_end() for rank in ranks] == [0, 0], ranks[0].text + ranks[1].text
    assert [f"trained {rank} 2 {rank + 4}" in ranks[rank].lines for rank in range(2)] == [True, True]
