"""Workers that do not fit their job, and pushes that do not fit their table: message and exit code."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_server.shard.memory_budget import CELL_BYTES, PARAMETER_BYTES
from ps_wire import errors

from .processes import LIMIT_S, Start, ended
from .servers import Servers, fresh_job
from .team import hearing, join, together

pytestmark = pytest.mark.integration


def test_another_consistency_ends_the_worker_with_78(cluster: Servers, spawn: Start, script: str) -> None:
    """What the job has, and what this worker wants; also with another number of workers."""
    job = fresh_job()
    options = ("--servers", cluster.option, "--job", job, "--num-workers")
    with join(cluster, job, consistency="ssp:2", num_workers=2):
        code, line = ended(spawn("ps-worker", *options, "2", "--consistency", "ssp:3", script))
        assert code == 78
        assert line == (
            f"ps-worker: JobMismatch: consistency of job {job}: the job has ssp:2, this worker wants ssp:3"
        )
        code, line = ended(spawn("ps-worker", *options, "3", "--consistency", "ssp:2", script))
        assert code == 78
        assert "number of workers" in line
        assert "the job has 2, this worker wants 3" in line


def test_another_nonfinite_ends_the_worker_with_78(cluster: Servers, spawn: Start, script: str) -> None:
    """As above; a value that is none ends with 64 before any server is asked."""
    job = fresh_job()
    options = ("--servers", cluster.option, "--job", job, "--num-workers", "2", "--nonfinite")
    with join(cluster, job, num_workers=2, nonfinite="skip"):
        code, line = ended(spawn("ps-worker", *options, "apply", script))
    assert code == 78
    assert (
        line == f"ps-worker: JobMismatch: nonfinite of job {job}: the job has skip, this worker wants apply"
    )
    code, line = ended(spawn("ps-worker", *options, "drop", script))
    assert code == 64
    assert "valid are: error, skip, apply" in line


def test_one_worker_more_than_num_workers_is_refused(cluster: Servers) -> None:
    """By number or without one; the members go on."""
    job = fresh_job()
    with join(cluster, job, num_workers=1):
        with pytest.raises(errors.JobFull, match="has all the workers of its --num-workers 1") as refused:
            join(cluster, job, num_workers=1)
        assert refused.value.exit_code == 78
        with pytest.raises(errors.JobFull, match=r"worker 3: .* numbered 0 to 0"):
            join(cluster, job, num_workers=1, worker=3)
        assert [worker.state for worker in cluster.status(job).workers] == ["joined"]


def test_a_worker_number_that_is_held_ends_the_worker_with_78(
    cluster: Servers, spawn: Start, script: str
) -> None:
    """Naming host and pid of its holder."""
    job = fresh_job()
    with join(cluster, job, num_workers=2, worker=1):
        options = ("--servers", cluster.option, "--job", job, "--num-workers", "2", "--worker", "1")
        code, line = ended(spawn("ps-worker", *options, script))
    assert code == 78
    holder = f"worker 1 (host {socket.gethostname()}, pid {os.getpid()})"
    assert line == f"ps-worker: WorkerNumberTaken: {holder} holds this number in job {job}"


def linear(columns: int = 4, *, name: str = "layer", dtype: torch.dtype | None = None) -> torch.nn.Module:
    return torch.nn.ModuleDict({name: torch.nn.Linear(3, columns, dtype=dtype)})


def sgd(model: torch.nn.Module, lr: float = 0.1, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def of(make: Callable[..., torch.optim.Optimizer], model: torch.nn.Module, **hyper: float) -> object:
    return make(model, **hyper), model


OTHERS: dict[str, tuple[Callable[[], object], str]] = {
    "shape": (
        lambda: of(sgd, linear(5)),
        "shape of parameter 'layer.weight': the job has (4, 3), this worker has (5, 3)",
    ),
    "name": (
        lambda: of(sgd, linear(name="head")),
        "name of a parameter: the job has layer.weight, this worker has head.weight",
    ),
    "dtype": (
        lambda: of(sgd, linear(dtype=torch.float64)),
        "dtype of parameter 'layer.weight': the job has float32, this worker has float64",
    ),
    "number": (
        lambda: of(sgd, torch.nn.ModuleDict({"layer": linear()["layer"], "more": torch.nn.Linear(1, 1)})),
        "number of parameters: the job has 2, this worker has 4",
    ),
    "optimizer": (
        lambda: of(lambda model: torch.optim.Adam(model.parameters()), linear()),
        "optimizer: the job has SGD, this worker has Adam",
    ),
    "hyper-parameter": (
        lambda: of(sgd, linear(), lr=0.2),
        "lr of param-group 0: the job has 0.1, this worker has 0.2",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_or_optimizer_is_refused_by_its_first_difference(cluster: Servers, name: str) -> None:
    """What differs, what the job has, what this worker brings; exit code 78; the job waits on, and starts."""
    make, text = OTHERS[name]
    job = fresh_job()

    def fits(worker: int) -> None:
        with join(cluster, job, num_workers=2, worker=worker) as joined:
            model = linear()
            joined.wrap(sgd(model), model)

    def others() -> None:
        assert waiting.wait(LIMIT_S)
        with (
            join(cluster, job, num_workers=2, worker=1) as second,
            pytest.raises(errors.TableMismatch) as refused,
        ):
            second.wrap(*make())
        assert refused.value.message == f"table 0 of this job differs: {text}"
        assert refused.value.exit_code == 78
        fits(1)

    with hearing("waiting for worker 1 to join") as waiting:
        together([lambda: fits(0), others])


def test_a_worker_with_another_model_ends_with_78(cluster: Servers, spawn: Start, tmp_path: Path) -> None:
    """As above, by the command: one line, no traceback."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, ps_worker as ps\n"
        "with ps.connect() as worker:\n"
        "    model = torch.nn.Linear(3, int(sys.argv[1]))\n"
        "    worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)\n"
    )
    options = ("ps-worker", "--servers", cluster.option, "--job", fresh_job(), "--num-workers", "2")
    first = spawn(*options, "--worker", "0", str(script), "4")
    first.wait_line(
        "waiting for worker 1 to join"
    )  # as long as it takes: who has joined says what the job has
    code, line = ended(spawn(*options, "--worker", "1", str(script), "5"))
    assert code == 78
    assert line == (
        "ps-worker: TableMismatch: table 0 of this job differs: shape of parameter 'weight': "
        "the job has (4, 3), this worker has (5, 3)"
    )


def test_a_job_over_the_memory_limit_is_refused(single: Servers) -> None:
    """How much it needs; nothing stays taken, and a smaller job runs."""
    before = single.figures(0)
    assert before.memory_limit_bytes == 4 << 20
    numel = 1 << 20
    with (
        join(single, fresh_job(), num_workers=1) as worker,
        pytest.raises(errors.MemoryLimitExceeded) as refused,
    ):
        worker.table({"w": torch.zeros(numel)}, optimizer=ps.Adam())
    assert refused.value.exit_code == 78
    needed = refused.value.facts[
        "needed"
    ]  # weights, two moments, one worker's slice; a partition, a parameter
    assert 0 < needed - 4 * 4 * numel - CELL_BYTES - PARAMETER_BYTES < 1 << 20  # and hyper-parameters
    assert refused.value.facts["limit"] == 4 << 20
    assert f"needs {needed} bytes on shard 0" in refused.value.message
    assert "more than are free of --memory-limit 4194304" in refused.value.message
    assert single.figures(0).memory_bytes == before.memory_bytes
    with join(single, fresh_job(), num_workers=1) as worker:
        table = worker.table({"w": torch.zeros(1000)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": -torch.ones(1000)}).result(LIMIT_S)
        assert (table.pull().result(LIMIT_S).values["w"] == 1).all()


def test_a_push_of_another_shape_or_dtype_leaves_nothing_behind(cluster: Servers) -> None:
    """A usage error names the tensor, what it is and what came; the step is not taken."""
    job = fresh_job()
    with join(cluster, job, consistency="asp") as worker:
        table = worker.table({"w": torch.zeros(30, 50)}, optimizer=ps.SGD(lr=1.0))
        for wrong, text in (
            ({"w": torch.ones(50, 30)}, r"'w' has shape \(30, 50\) .*, got \(50, 30\)"),
            ({"w": torch.ones(30, 50).double()}, r"dtype torch.float32 .*, got .* torch.float64"),
            ({"v": torch.ones(30, 50)}, "the table has no 'v'; it has w"),
        ):
            with pytest.raises(errors.UsageError, match=text) as refused:
                table.push(wrong)
            assert refused.value.exit_code == 64
        with pytest.raises(errors.UsageError, match=r"weight of a push must be .*, got 0.0"):
            table.push({"w": torch.ones(30, 50)}, weight=0.0)
        assert table.step == 0
        table.push({"w": -torch.ones(30, 50)}).result(LIMIT_S)
        assert (table.pull().result(LIMIT_S).values["w"] == 1).all()
        assert cluster.ledger(0, job, 0).received == cluster.table(0, job).partitions
        worker.finish()
