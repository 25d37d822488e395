"""The scripts of the tutorials run as they are, on servers, and learn; so do those that they replace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ps_lab.cluster.ports import free_ports

from .processes import Process, Start
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "tutorials"


def workers(
    spawn: Start, servers: Servers, script: str, *arguments: str, consistency: str, job: str | None = None
) -> list[Process]:
    """Two workers of a job, with the script."""
    options = ("--servers", servers.option, "--job", job or fresh_job(), "--consistency", consistency)
    command = ("ps-worker", *options, "--num-workers", "2", str(SCRIPTS / script), *arguments)
    return [spawn(*command) for _ in range(2)]


def text_of(processes: list[Process]) -> str:
    """Their output, when all have ended well."""
    assert [process.wait_end() for process in processes] == [0] * len(processes), "\n".join(
        process.text for process in processes
    )
    return "\n".join(process.text for process in processes)


def the_others(spawn: Start, script: str, world: int, *arguments: str) -> list[Process]:
    """Processes of a script without servers, started as torchrun starts them."""
    around = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(world)}
    command = ("ps-worker", "--servers", "none", str(SCRIPTS / script), *arguments)
    return [spawn(*command, **around, RANK=str(rank)) for rank in range(world)]


def number(pattern: str, text: str) -> float:
    """The number that a script has printed, once."""
    (found,) = re.findall(rf"{pattern} ([\d.]+)", text)
    return float(found)


def test_ddp_and_what_it_becomes_learn_the_same(spawn: Start, cluster: Servers) -> None:
    theirs = the_others(spawn, "ddp.py", 2)
    ours = workers(spawn, cluster, "from_ddp.py", consistency="bsp")
    for processes in (theirs, ours):
        assert number("accuracy", text_of(processes)) > 0.85


def test_a_server_over_rpc_and_what_it_becomes_learn_the_same(spawn: Start, cluster: Servers) -> None:
    theirs = the_others(spawn, "torch_rpc.py", 3)
    ours = workers(spawn, cluster, "from_torch_rpc.py", consistency="asp")
    for processes in (theirs, ours):
        assert number("accuracy", text_of(processes)) > 0.75


@pytest.mark.parametrize(
    ("script", "consistency"), [("from_horovod.py", "bsp"), ("from_tensorflow.py", "asp")], ids=str
)
def test_the_habits_of_others_learn(
    spawn: Start, cluster: Servers, tmp_path: Path, script: str, consistency: str
) -> None:
    saved = tmp_path / "weights.pt"
    text = text_of(workers(spawn, cluster, script, "--save", str(saved), consistency=consistency))
    assert number("accuracy", text) > 0.75
    assert torch.load(saved, weights_only=True).keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_one_worker_stops_early_and_all_have_the_same_weights(spawn: Start, cluster: Servers) -> None:
    text = text_of(workers(spawn, cluster, "early_stopping.py", consistency="ssp:3"))
    (last,) = re.findall(r"epoch (\d+) is the last one for all workers", text)
    assert int(last) < 99
    finals = re.findall(r"worker \d has the final weights: accuracy ([\d.]+)", text)
    assert len(finals) == 2
    assert finals[0] == finals[1]


def test_an_evaluator_beside_training_sees_the_end_and_keeps_the_best(
    spawn: Start, cluster: Servers, tmp_path: Path
) -> None:
    job, saved = fresh_job(), tmp_path / "best.pt"
    evaluator = spawn(
        *("ps-worker", "--servers", cluster.option, "--job", job, str(SCRIPTS / "evaluator.py")),
        *("--every", "0.05", "--save", str(saved)),
    )
    text_of(workers(spawn, cluster, "early_stopping.py", "--epochs", "4", consistency="asp", job=job))
    text = text_of([evaluator])
    assert number("best accuracy was", text) > 0.7
    seen = re.findall(r"version (\d+):", text)
    assert str(torch.load(saved, weights_only=True)["version"]) in seen


def test_the_best_checkpoint_is_gone_on_from(spawn: Start, cluster: Servers, tmp_path: Path) -> None:
    saved = tmp_path / "best.pt"
    script = ("best_checkpoint.py", "--save", str(saved))
    text_of(workers(spawn, cluster, *script, "--epochs", "2", consistency="bsp"))
    epoch = torch.load(saved, weights_only=True)["epoch"]
    text = text_of(
        workers(spawn, cluster, *script, "--resume", str(saved), "--epochs", "3", consistency="bsp")
    )
    assert [int(number) for number in re.findall(r"epoch (\d+):", text)] == list(range(epoch + 1, 3))


def test_matrix_factorisation_on_a_table_finds_the_ratings(spawn: Start, cluster: Servers) -> None:
    text = text_of(workers(spawn, cluster, "matrix_factorisation.py", consistency="ssp:2"))
    ends = re.findall(r"worker \d: rmse ([\d.]+)", text)
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert float(ends[0]) < 0.5, text
