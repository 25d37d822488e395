"""`ps-lab job drop` over real processes, as a person types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import Start, ended
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration


@pytest.fixture(name="trains")
def _trains(tmp_path: Path) -> str:
    """A script that takes one step, or as many as come."""
    path = tmp_path / "train.py"
    path.write_text(
        "import sys, torch, ps_worker as ps\n"
        "with ps.connect() as worker:\n"
        "    table = worker.table({'w': torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))\n"
        "    while not worker.ended:\n"
        "        table.push({'w': torch.ones(3000)})\n"
        "        print('at', table.pull().result().values['w'][0].item(), flush=True)\n"
        "        if sys.argv[1] == 'once':\n"
        "            break\n"
        "    worker.finish()\n"
    )
    return str(path)


def test_the_name_is_spent_by_one_run_and_free_when_the_job_was_dropped(
    cluster: Servers, spawn: Start, trains: str
) -> None:
    """The second run says how; where nobody can be asked, --yes has to be said."""
    job = fresh_job()
    run = ("ps-worker", "--servers", cluster.option, "--job", job, trains, "once")
    drop = ("ps-lab", "job", "drop", job, "--servers", cluster.option)
    assert ended(spawn(*run)) == (0, "at -1.0")
    second = spawn(*run)
    assert second.wait_end() == 0
    assert f"ps-lab job drop {job}" in second.text
    code, line = ended(spawn(*drop))
    assert (code, "--yes" in line, "ended, 1 table, " in line) == (64, True, True)
    dropped = spawn(*drop, "--yes")
    assert dropped.wait_end() == 0, dropped.text
    assert f"job {job} is dropped: it was ended, 1 table, " in dropped.text
    assert ended(spawn(*drop, "--yes")) == (
        1,
        f"ps-lab: JobUnknown: there is no job '{job}' to drop: ps-lab status lists them",
    )
    assert ended(spawn(*run)) == (0, "at -1.0")


def test_live_workers_are_named_and_end_where_it_is_forced(
    cluster: Servers, spawn: Start, trains: str
) -> None:
    """78 before; a worker whose job is dropped ends with 1, and says why in its last line."""
    job = fresh_job()
    worker = spawn("ps-worker", "--servers", cluster.option, "--job", job, trains, "on")
    worker.wait_line("at -1.0")
    listed = spawn("ps-lab", "job", "list", "--servers", cluster.option)
    assert listed.wait_end() == 0, listed.text
    assert [line for line in listed.lines if f" {job} " in line and " running " in line]
    drop = ("ps-lab", "job", "drop", job, "--servers", cluster.option)
    code, line = ended(spawn(*drop))
    assert code == 78
    assert line.startswith(f"ps-lab: JobInUse: job {job} has live workers: worker 0 (host ")
    forced = spawn(*drop, "--force", "--yes")
    assert forced.wait_end() == 0, forced.text
    assert "told, and ends: worker 0 (host " in forced.text
    code, line = ended(worker)
    assert code == 1
    assert line.startswith(f"ps-worker: JobDropped: job {job} was dropped (ps-lab job drop): ")
    assert cluster.status(job) is None
    code, line = ended(spawn("ps-lab", "status", "--job", job, "--servers", cluster.option))
    assert (code, line) == (
        1,
        f"ps-lab: JobUnknown: the servers know no job {job!r}: ps-lab job list names those that they have",
    )


EPOCHS = """
import torch, ps_worker as ps
from torch.utils.data import TensorDataset

model = torch.nn.Linear(2, 1)
with ps.connect() as worker:
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), model)
    loader = worker.loader(TensorDataset(torch.arange(96.0).reshape(48, 2)), batch_size=4)
    last = -1
    for last in worker.epochs(1_000_000):
        print('epoch', last, flush=True)
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    worker.finish()
    print('last', last, flush=True)
"""


def test_a_job_that_is_stopped_by_a_person_ends_for_all_after_the_same_epoch(
    cluster: Servers, spawn: Start, tmp_path: Path
) -> None:
    """And they finish: it has ended then, and cannot be stopped again."""
    job, script = fresh_job(), tmp_path / "epochs.py"
    script.write_text(EPOCHS)
    run = ("ps-worker", "--servers", cluster.option, "--job", job, "--num-workers", "2", str(script))
    workers = [spawn(*run) for _ in range(2)]
    for worker in workers:
        worker.wait_line(r"epoch 0")
    stop = ("ps-lab", "job", "stop", job, "--servers", cluster.option, "--reason", "it is good enough")
    code, line = ended(spawn(*stop))
    assert (code, "a person has stopped the job after epoch" in line) == (0, True)
    assert line.endswith("it is good enough")
    assert [worker.wait_end() for worker in workers] == [0, 0]
    epochs = {worker.lines[-1] for worker in workers}
    assert epochs == {"last " + line.split("epoch ")[1].split(":")[0]}
    code, line = ended(spawn(*stop))
    assert (code, "has ended already" in line, "ps-lab job drop" in line) == (78, True, True)


def test_a_job_that_is_not_there_cannot_be_stopped(cluster: Servers, spawn: Start) -> None:
    code, line = ended(spawn("ps-lab", "job", "stop", "nobody", "--servers", cluster.option))
    assert (code, "'nobody'" in line) == (1, True)
