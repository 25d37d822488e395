"""Law 1 over real processes: a training script under the service gives the bytes of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from ps_wire.frames.carrier import Carrier
from ps_wire.sockets.shared_memory import AVAILABLE

from .processes import Zygote
from .servers import Servers, fresh_job

pytestmark = pytest.mark.integration

STEPS = 6
CARRIERS = [carrier for carrier in Carrier if carrier is not Carrier.SHM or AVAILABLE]
SHARED = """
import torch
from torch.nn import functional as F

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
}


def make_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(37, 301), torch.nn.Tanh(), torch.nn.Linear(301, 53, bias=False),
        torch.nn.LayerNorm(53), torch.nn.Linear(53, 5),
    )


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    x, y = torch.randn(9, 37, generator=generator), torch.randint(5, (9,), generator=generator)
    return F.cross_entropy(model(x), y)
"""
SCRIPT = (
    SHARED
    + """
import itertools
import sys
import safetensors.torch
import ps_worker as ps

folder, prefix, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
for carrier, (name, (cls, hyper)) in itertools.product(sys.argv[4].split(","), OPTIMIZERS.items()):
    with ps.connect(job=f"{prefix}-{carrier}-{name}", carrier=carrier) as worker:
        model = make_model(seed=worker.rank)  # worker 0's weights start the job
        optimizer = worker.wrap(cls(model.parameters(), **hyper), model)
        for step in range(steps):
            loss_of(model, worker.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        worker.finish()
        path = f"{folder}/{carrier}-{name}-{worker.rank}.safetensors"
        safetensors.torch.save_file(dict(model.state_dict()), path)
"""
)


def alone(name: str) -> dict[str, torch.Tensor]:
    """One process that computes the gradients of both workers and takes their mean in rank order."""
    known: dict[str, object] = {}
    exec(SHARED, known)
    cls, hyper = known["OPTIMIZERS"][name]
    model = known["make_model"](seed=0)
    optimizer = cls(model.parameters(), fused=True, **hyper)
    parameters = list(model.parameters())
    for step in range(STEPS):
        first, second = (
            torch.autograd.grad(known["loss_of"](model, rank, step), parameters) for rank in (0, 1)
        )
        for parameter, one, other in zip(parameters, first, second, strict=True):
            parameter.grad = (one + other) / 2
        optimizer.step()
    return model.state_dict()


@pytest.fixture(scope="module")
def folder(cluster: Servers, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two worker processes have put the final weights of each job."""
    folder = tmp_path_factory.mktemp("law_1")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    options = ("--servers", cluster.option, "--num-workers", "2")
    arguments = (str(script), str(folder), fresh_job(), str(STEPS), ",".join(CARRIERS))
    workers = [zygote.start("ps-worker", *options, "--worker", rank, *arguments) for rank in ("0", "1")]
    assert [worker.wait_end() for worker in workers] == [0, 0], workers[0].text + workers[1].text
    return folder


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_law_1_bsp_equals_one_process_that_averages_in_rank_order(
    folder: Path, name: str, carrier: str
) -> None:
    """BSP with 2 workers on 2 shards: the bytes of torch.optim (fused) on the rank-order mean."""
    expected = alone(name)
    for rank in (0, 1):
        got = safetensors.torch.load_file(folder / f"{carrier}-{name}-{rank}.safetensors")
        assert got.keys() == expected.keys()
        for parameter, value in expected.items():
            assert torch.equal(got[parameter], value), (rank, parameter)
