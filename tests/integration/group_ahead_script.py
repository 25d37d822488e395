"""A training script for a group of ranks that looks at its weights while backward is running.

Arguments: folder, steps. Each rank says what it saw, in the last hook of each backward: how many versions its
weights were apart, as far as it has heard, and whether its parameters were those of the step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import ps_worker as ps

LIMIT_S = 60.0
EACH = ps.BucketOptions(bucket_bytes=0, first_bucket_bytes=0)  # every parameter is a bucket


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    with ps.connect() as worker:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(200, 200) for _ in range(4)]
        model = torch.nn.Sequential(*layers)
        parameters = list(model.parameters())
        seen: list[tuple[int, bool]] = []

        def settled() -> bool:
            """Whether what has left is on the shards: with the next bucket its weights are asked for."""
            return not beside.used or (beside.idle and in_flight.wait_acked(limit_s=0.0))

        def wait_until(condition: Callable[[], bool]) -> None:
            limit = time.monotonic() + LIMIT_S
            while not condition():
                assert time.monotonic() < limit, (in_flight.versions, early)
                time.sleep(0.001)

        def look(place: int) -> None:
            wait_until(settled)
            if place == 0:  # the last one that backward comes to
                if len(early) > 1:
                    wait_until(lambda: max(in_flight.versions) == len(seen) + 1)
                kept = all(map(torch.equal, parameters, before))
                seen.append((max(in_flight.versions) - min(in_flight.versions), kept))

        for place, parameter in enumerate(parameters):  # before wrap: gradients leave when it has looked
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: look(place))
        optimizer = worker.wrap(
            torch.optim.SGD(model.parameters(), lr=0.01), model, overlap=True, buckets=EACH
        )
        exchange = optimizer._sender.tables[0].exchange
        beside, in_flight = exchange._ranks.beside, exchange.in_flight
        early = [index for index in exchange._ranks.owned if index < len(parameters) - 1]
        generator = torch.Generator().manual_seed(worker.group_rank)
        for _ in range(steps):
            worker.synchronize()
            before = [it.detach().clone() for it in parameters]
            optimizer.zero_grad()
            model(torch.randn(8, 200, generator=generator)).square().mean().backward()
            optimizer.step()
        worker.synchronize()
        weights = [it.detach().clone() for it in parameters]
        worker.finish()
        said = {"early": len(early), "seen": seen, "versions": list(in_flight.versions)}
        (folder / f"{worker.group_rank}.json").write_text(json.dumps(said))
        torch.save(weights, folder / f"{worker.group_rank}.pt")


main()
