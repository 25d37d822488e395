"""The stand-in for `torch._dynamo`, in a process where nothing has imported it yet."""

import pytest

from tests.anew import run_anew

BEGIN = """
import sys, torch
import torch.distributed as dist
import ps_worker, ps_worker.cli, ps_server.process.server
from ps_wire.process import late_dynamo

LARGE = ("torch._dynamo", "torch.distributed.pipelining", "sympy")
assert not any(name.startswith(LARGE) for name in sys.modules)

late_dynamo.install()
model = torch.nn.Linear(2, 2)
NAMES = "SGD Adam AdamW Adagrad RMSprop Adadelta Adamax NAdam RAdam ASGD Rprop".split()
with ps_worker.connect() as worker:  # overlaps: it has hooks on modules
    wrapped = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        wrapped.step()
        wrapped.zero_grad()
def skipped(value):
    return value + 1
torch._dynamo.eval_frame.skip_code(skipped.__code__)
for name in NAMES:
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
assert not any(name.startswith(("torch._dynamo.", "sympy")) for name in sys.modules)
assert late_dynamo.is_late()
assert not hasattr(sys.modules["torch._dynamo"], "__wrapped__")  # whoever looks through all modules
assert late_dynamo.is_late()
"""
# Its own modules import each other by name: one that ran twice would have each class twice.
BY_A_MODULE = """
from torch._dynamo.exc import ObservedException
import torch._dynamo.symbolic_convert, torch._dynamo.config

assert not late_dynamo.is_late()
assert torch._dynamo.symbolic_convert.ObservedException is ObservedException
assert torch._dynamo.exc.__spec__.loader.get_filename() == torch._dynamo.exc.__file__
assert torch._dynamo.config is sys.modules["torch._dynamo.config"]
assert torch._dynamo is sys.modules["torch._dynamo"]
"""
BY_COMPILING = """
traced = []
def backend(graph, _):
    traced.append(graph)
    return graph.forward
step = torch.optim.Optimizer.add_param_group.__wrapped__
assert "__dynamo_disable" in vars(step)
stand_in = sys.modules["torch._dynamo"]
compiled = torch.compile(model, backend="eager")
assert torch.equal(compiled(torch.ones(1, 2)), model(torch.ones(1, 2)))
assert not late_dynamo.is_late()
assert torch.equal(torch.compile(skipped, backend=backend)(torch.ones(2)), torch.full((2,), 2.0))
assert traced == []
torch.compile(lambda value: value + 1, backend=backend)(torch.ones(2))
assert len(traced) == 1
assert stand_in.optimize is torch._dynamo.optimize  # whoever still has the stand-in
assert stand_in.trace_rules.lookup is torch._dynamo.trace_rules.lookup
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert "__dynamo_disable" not in vars(step)  # so it is disabled at its next call
torch.optim.SGD(model.parameters(), lr=0.1)
assert vars(step)["__dynamo_disable"] is not step
"""


@pytest.mark.parametrize("then", [BY_A_MODULE, BY_COMPILING], ids=["by a module", "by compiling"])
def test_optimizers_do_without_it_until_it_is_asked_for(then):
    run = run_anew("-c", BEGIN + then)
    assert run.returncode == 0, run.stderr
