"""Pipelines of stages: a step beside torch's own, the cut, idle time, memory. Prints one JSON line.

    python benchmarks/pipeline.py --what step --stages 4 --rounds 5

`--what` is one of:

    step       seconds a step, 1f1b with 8 micro-batches, servers included, and of torch's own schedule with a
               local optimizer, in turns
    partition  12 uneven blocks in 4 stages: the largest stage over that of the best of all splits, and how
               far stages that are run as a whole are from the sum of their blocks
    bubble     stages that sleep: the idle share of `--schedule`, less its formula, in points
    memory     the most bytes that autograd keeps in the first stage, 1f1b over gpipe
    pss        memory (PSS) of the largest of 4 stages over that of a worker of one process, after two steps,
               for gpt2-xl's 48 layers and words, `--width` wide: 1600 are gpt2-xl itself, which takes 22 GiB
               with its servers; without `--width` as wide as there is room for here. What of it is memory
               that is not shared (anon), shared with servers (shmem), or of programs (file). `whole` is all
               of it; `held` is without freed blocks that the C allocator keeps, which differ from run to
               run, and `share` is that of `held`
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from ps_lab.bench import usage
from ps_lab.bench.parties import interleave
from ps_lab.bench.session import ProcessPlan, Session
from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.ports import free_ports
from ps_worker.pipeline.blocks import blocks_of
from ps_worker.pipeline.cost import REPEATS, WARM_UP, cheapest_cuts, costs_of
from ps_worker.pipeline.timetable import formula

STAGE = Path(__file__).with_name("pipeline_stage.py")
MICROBATCHES, STEPS, LIMIT_S = 8, 2, 300.0
LAYERS, WORDS, POSITIONS, WIDTH, HEAD = 48, 50257, 1024, 1600, 64  # gpt2-xl
NEEDED = 3.55  # times its parameters, of all processes: 3.4 in the first step at 1600
RESERVE_BYTES = 3 << 29  # what does not grow with it, 1 GiB, and half of that for others
SLEEPING = """
import sys, time, torch, ps_worker as ps
FORWARD_S, BACKWARD_S, MICROBATCHES, STEPS = 0.05, 0.1, 8, 4

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_S)
        return gradient

class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return Slow.apply(x * self.weight)

with ps.connect() as worker:
    model = torch.nn.Sequential(*(Stage() for _ in range(worker.group_size)))
    x = torch.ones(MICROBATCHES, 4)
    pipe = worker.pipeline(model, example=x, microbatches=MICROBATCHES, schedule=sys.argv[1])
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), pipe)
    seconds = []
    for _ in range(STEPS):
        began = time.monotonic()
        pipe.step(x, x, loss_fn=torch.nn.functional.mse_loss)
        seconds.append(time.monotonic() - began)
        optimizer.step()
        optimizer.zero_grad()
    if worker.is_first:
        print("idle", 1 - MICROBATCHES * (FORWARD_S + BACKWARD_S) / min(seconds[1:]), flush=True)
    worker.finish()
"""
KEEPING = """
import sys, torch, ps_worker as ps
MICROBATCHES = 8

class Kept:
    live = most = 0

    def __init__(self, tensor):
        self.tensor = tensor
        Kept.live += tensor.nbytes
        Kept.most = max(Kept.most, Kept.live)

    def __del__(self):
        Kept.live -= self.tensor.nbytes

with ps.connect() as worker:
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    x = torch.ones(32 * MICROBATCHES, 64)
    pipe = worker.pipeline(model, example=x, microbatches=MICROBATCHES, schedule=sys.argv[1])
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.0), pipe)
    weights = {it.untyped_storage().data_ptr() for it in model.parameters() if not it.is_meta}

    def keep(tensor):
        return tensor if tensor.untyped_storage().data_ptr() in weights else Kept(tensor)

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda it: getattr(it, "tensor", it)):
            pipe.step(x, x, loss_fn=torch.nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()
    if worker.is_first:
        print("kept", Kept.most, flush=True)
    worker.finish()
"""
WEIGHING = """
import re, sys, time, torch, ps_worker as ps
from pathlib import Path
from torch import nn
from torch.nn import functional as F
from ps_wire.process.allocator import give_back_freed_blocks
WIDTH, LAYERS, WORDS, POSITIONS, HEAD = map(int, sys.argv[1:])
CONTEXT, MICROBATCHES, HEADS = 8, 4, WIDTH // HEAD

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.attn(self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.register_buffer("positions", torch.arange(CONTEXT, device="cpu"))
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x):
        x = self.wte(x) + self.wpe(self.positions)
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))

def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())

def meet(what):  # what a process maps alone counts as its own: nobody measures while others begin or leave
    folder = Path(__file__).parent
    (folder / f"{what} {worker.group_rank}").touch()
    while len(list(folder.glob(f"{what} [0-9]*"))) < worker.group_size:
        time.sleep(0.01)

with ps.connect() as worker:
    x = torch.arange(MICROBATCHES * CONTEXT).view(MICROBATCHES, CONTEXT)
    piped = worker.group_size > 1
    with torch.device("meta" if piped else "cpu"):
        model = Model()
    pipe = worker.pipeline(model, example=x, microbatches=MICROBATCHES) if piped else None
    optimizer = worker.wrap(
        torch.optim.SGD(model.parameters(), lr=1e-6), pipe or model, gradient_as_bucket_view=True
    )
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        if pipe is not None:
            pipe.step(x, x, loss_fn=loss_of)
        else:
            for part in x.split(1):
                (loss_of(model(part), part) / MICROBATCHES).backward()
        optimizer.step()
    for name in ("whole", "held"):
        meet(name)
        lines = open("/proc/self/smaps_rollup").read()
        found = re.findall("^(Pss|Pss_Anon|Pss_File|Pss_Shmem): +([0-9]+) kB", lines, re.MULTILINE)
        print(*[f"{name}_{kind.lower()} {int(kb) * 1024}" for kind, kb in found], flush=True)
        meet(f"{name} found")
        give_back_freed_blocks()
    worker.finish()
"""


def step(stages: int, rounds: int) -> dict[str, object]:
    """See `--what step`."""

    def say(name: str, line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr)

    def plans(session: Session, mode: str) -> list[ProcessPlan]:
        (port,) = free_ports(1)
        own = {"stages": stages, "microbatches": MICROBATCHES, "steps": STEPS, "batch_size": 32, "port": port}
        servers = {
            "PS_SERVERS": ",".join(session.cluster.addresses),
            "PS_JOB": mode,
            "PS_WORKER": "0",
            "PS_NUM_WORKERS": "1",
            "PS_PIPELINE_STAGES": str(stages),
        }
        return [
            ProcessPlan(
                name=f"{mode} {rank}",
                command=(sys.executable, str(STAGE)),
                configuration={**own, "mode": mode, "rank": rank},
                environment={**servers, "PS_STAGE": str(rank), "OMP_NUM_THREADS": "1"},
            )
            for rank in range(stages)
        ]

    with Session(num_servers=1, on_line=say) as session:
        parties = [
            session.start(mode, plans(session, mode), limit_s=LIMIT_S) for mode in ("project", "torch")
        ]
        session.wait_ready(limit_s=LIMIT_S)
        found = interleave(parties, rounds)
    step_s = {name: statistics.median(it.seconds for it in items) / STEPS for name, items in found.items()}
    return {"stages": stages, "step_s": step_s, "ratio": step_s["project"] / step_s["torch"]}


def partition(rounds: int) -> dict[str, object]:
    """See `--what partition`."""
    torch.manual_seed(0)
    widths = [256, 512, 1024, 256, 2048, 512, 256, 1024, 512, 2048, 256, 512]
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, it), nn.GELU(), nn.Linear(it, 256)) for it in widths)
    )
    model = nn.Sequential(*(_Block(it) for it in model))
    blocks, x = blocks_of(model), torch.randn(256, 256)
    costs = costs_of(blocks, model, [x])
    block_s = [it.forward_s + it.backward_s for it in costs]
    cuts = cheapest_cuts(costs, 4, "time", in_flight=(4, 3, 2, 1))

    def largest(inner: tuple[int, ...]) -> float:
        return max(sum(block_s[begin:end]) for begin, end in itertools.pairwise((0, *inner, len(blocks))))

    best = min(map(largest, itertools.combinations(range(1, len(blocks)), 3)))
    ratios: dict[int, list[float]] = {begin: [] for begin in cuts}
    for _ in range(rounds):  # prediction and stages in turns, so that noise hits both
        costs = costs_of(blocks, model, [x])
        for begin, end in itertools.pairwise((*cuts, len(blocks))):
            predicted_s = sum(it.forward_s + it.backward_s for it in costs[begin:end])
            ratios[begin].append(_run_s(blocks.stage(begin, end), x.detach().requires_grad_(begin > 0)))
            ratios[begin][-1] /= predicted_s
    off = {begin: abs(statistics.median(every) - 1) for begin, every in ratios.items()}
    return {"cuts": cuts, "over_best": largest(cuts[1:]) / best, "off": max(off.values())}


def _run_s(stage: nn.Module, x: torch.Tensor) -> float:
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        began = time.perf_counter()
        made = stage(x)
        made.backward(torch.ones_like(made))
        seconds.append(time.perf_counter() - began)
        stage.zero_grad()
    return statistics.median(seconds[WARM_UP:])


class _Block(nn.Module):
    """A residual block, which is cut as a whole."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def bubble(stages: int, schedule: str) -> dict[str, object]:
    """See `--what bubble`."""
    idle = _said("idle", SLEEPING, stages, schedule)
    expected = formula(schedule, stages, stages, MICROBATCHES)
    assert expected is not None, f"{schedule} has no formula"
    return {"idle": idle, "formula": expected, "points": 100 * abs(idle - expected)}


def memory(stages: int) -> dict[str, object]:
    """See `--what memory`."""
    kept = {schedule: _said("kept", KEEPING, stages, schedule) for schedule in ("1f1b", "gpipe")}
    return {"kept": kept, "share": kept["1f1b"] / kept["gpipe"]}


def width_for(available_bytes: int) -> int:
    """The widest such model of which a worker of one process and its server fit into so much memory."""
    widths = range(HEAD, WIDTH + 1, HEAD)
    fit = [it for it in widths if NEEDED * 4 * _numbers(it) + RESERVE_BYTES <= available_bytes]
    return max(fit, default=HEAD)


def _numbers(width: int) -> int:
    """How many its parameters are, but for biases and norms."""
    return width * (LAYERS * 12 * width + WORDS + POSITIONS)


def pss(stages: int, width: int | None) -> dict[str, object]:
    """See `--what pss`."""
    width = width or width_for(usage.available_bytes() or 0)
    shape = [str(it) for it in (width, LAYERS, WORDS, POSITIONS, HEAD)]
    said = {count: _output(WEIGHING, count, *shape) for count in (stages, 1)}
    held, whole = (_compared(name, said[stages], said[1]) for name in ("held", "whole"))
    return {"width": width, "share": held["share"], "held": held, "whole": whole}


def _compared(name: str, staged: str, alone: str) -> dict[str, object]:
    """The figures of that name, of the stages and of the process that are alone."""
    kinds = "pss", "pss_anon", "pss_file", "pss_shmem"
    parts, (one,) = (
        sorted(zip(*(_figures(f"{name}_{kind}", said) for kind in kinds), strict=True))
        for said in (staged, alone)
    )
    return {
        "stages": [part[0] for part in parts],
        "largest": dict(zip(kinds, parts[-1], strict=True)),
        "one_process": dict(zip(kinds, one, strict=True)),
        "share": parts[-1][0] / one[0],
    }


def _said(word: str, text: str, stages: int, schedule: str) -> float:
    return _figures(word, _output(text, stages, schedule))[0]


def _figures(word: str, said: str) -> list[float]:
    """What each process has said behind a word."""
    found = [float(it) for it in re.findall(rf"\b{word} (\S+)", said)]
    if not found:
        raise SystemExit(said)
    return found


def _output(text: str, stages: int, *arguments: str) -> str:
    """What the processes of a script say."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(text)
        words = [command_path("ps-lab"), "launch", "--num-servers", "1", "--num-workers", "1"]
        words += ["--pipeline-stages", str(stages), str(script), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=("step", "partition", "bubble", "memory", "pss"), required=True)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int)
    options = parser.parse_args()
    if options.what == "step":
        figures = step(options.stages, options.rounds)
    elif options.what == "partition":
        figures = partition(options.rounds)
    elif options.what == "bubble":
        figures = bubble(options.stages, options.schedule)
    elif options.what == "pss":
        figures = pss(options.stages, options.width)
    else:
        figures = memory(options.stages)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
