"""Jobs whose processes are of two builds: servers of one and workers of the other, both in turn.

Each comes to the weights, states and ledgers of a job whose processes are all of one build; a server of one
build also takes over from one of the other, in the middle of a job. Builds of two protocols refuse each other
by name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.unchanged.running import Service, script
from tests.unchanged.training import OPTIMIZERS, WORKERS, plan_of, rows
from tests.unchanged.tree import Tree

PAUSE_AT = 2
REFUSED = 1  # exit code of a script of plain Python that an error ends
NAMES = [("Mlp", "tcp", "SGD"), ("Tied", "shm", "Adam"), ("Conv", "uds", "AdamW"), ("Mlp", "grpc", "Adam")]


def outcomes(
    folder: Path, name: str, servers: Sequence[Tree], workers: Sequence[Tree]
) -> Iterator[tuple[str, Any]]:
    """What jobs come to. Where two builds are named as servers', the second takes over in the middle."""
    for job in rows(NAMES, pause_at=PAUSE_AT):
        with ExitStack() as stack:
            running = Service(stack, 2)
            options = [("--state-dir", str(folder / f"{name}-{job['job']}-{shard}")) for shard in range(2)]
            running.start(servers[0], options)
            (place := folder / f"{name}-{job['job']}").mkdir()
            plans = [plan_of(place, [job], running.servers, worker) for worker in range(WORKERS)]
            scripts = [
                stack.enter_context(script(tree, "train.py", plan))
                for tree, plan in zip(workers, plans, strict=True)
            ]
            for worker in scripts:
                assert "paused" in worker.answer()
            for successor in servers[1:]:
                running.stop()
                running.start(successor, options)
            for worker in scripts:
                worker.tell()
            for number, worker in enumerate(scripts):
                answer = worker.answer()
                for kind in ("weights", "state", "ledger"):
                    yield f"{job['job']}/worker {number}/{kind}", answer[kind]
                worker.end()
            running.stop()


def differences(
    before: Tree, after: Tree, folder: Path
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name of each way to mix, with what jobs of one build come to, and what those of two do."""
    if _protocol(before) != _protocol(after):
        for one, two in itertools.permutations((before, after)):
            name = f"servers of protocol {_protocol(one)}, workers of protocol {_protocol(two)}"
            yield name, *_refusal(folder / f"{_protocol(one)}", one, two)
        return
    plain = dict(outcomes(folder, "one build", [after], [after] * WORKERS))
    handed = dict(outcomes(folder, "one build, taken over", [after, after], [after] * WORKERS))
    for first, second in itertools.permutations((("before", before), ("after", after))):
        one, two = first[1], second[1]
        name = f"servers {first[0]}, workers {second[0]}"
        yield name, plain, dict(outcomes(folder, name, [one], [two] * WORKERS))
        name = f"worker 0 {first[0]}, worker 1 and servers {second[0]}"
        yield name, plain, dict(outcomes(folder, name, [two], [one, two]))
        name = f"servers {first[0]}, then {second[0]}, workers {second[0]}"
        yield name, handed, dict(outcomes(folder, name, [one, two], [two] * WORKERS))


def _protocol(tree: Tree) -> int:
    """The number that a build has in each frame."""
    found = re.search(
        r"^PROTOCOL = (\d+)$", (tree.path / "ps_wire/frames/frame.py").read_text(), re.MULTILINE
    )
    assert found is not None, tree
    return int(found[1])


def _refusal(folder: Path, servers: Tree, workers: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
    """How each worker is to end, and how it does."""
    (job,) = rows(NAMES[:1])
    folder.mkdir()
    ends: dict[str, Any] = {}
    with ExitStack() as stack:
        running = Service(stack, 2)
        running.start(servers, [()] * 2)
        plans = [plan_of(folder, [job], running.servers, worker) for worker in range(WORKERS)]
        scripts = [stack.enter_context(script(workers, "train.py", plan)) for plan in plans]
        for number, worker in enumerate(scripts):
            code, said = worker.process.wait_end(), worker.process.text
            ends[f"worker {number}"] = [code, "the other end speaks protocol" in said]
        running.stop()
    return {worker: [REFUSED, True] for worker in ends}, ends


assert {optimizer for _, _, optimizer in NAMES} == set(OPTIMIZERS)
