"""What an optimizer adds to a round of SGD's, over the time of its own kernel alone on all cores.

    python benchmarks/optimizer_cost.py --carrier shm --optimizer adam

Two jobs on the same servers and the kernel take turns, so that the difference of times is one of one run.
Prints one JSON line: the ratio, null where noise makes the difference negative, and the medians in seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from ps_lab.bench import limit
from ps_lab.bench.figures import summarize
from ps_lab.bench.parties import WARM_UP_ROUNDS, interleave
from ps_lab.bench.roundtrip import project_session, start_project
from ps_lab.bench.session import ProcessParty
from ps_lab.bench.setup import Setup
from ps_lab.bench.shapes import of_model
from ps_lab.bench.watcher import showing
from ps_lab.cluster.display import make_error_console
from ps_lab.errors import exit_code_of
from ps_wire.errors import PsError


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--carrier", default="auto")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    options = parse()
    sgd = Setup(
        model=options.model,
        shapes=of_model(options.model),
        num_servers=1,
        num_workers=2,
        asked_carrier=options.carrier,
        consistency="bsp",
        optimizer="sgd",
        rounds=options.rounds,
        peers=(),
        with_limit=True,
    )
    setups = {"sgd": sgd, "other": dataclasses.replace(sgd, optimizer=options.optimizer)}
    with showing(make_error_console()) as watcher, project_session(sgd, watcher) as session:
        parties: list[ProcessParty] = [
            start_project(session, setup, name=name, job_name=f"bench-{name}")
            for name, setup in setups.items()
        ]
        session.wait_ready(limit_s=sgd.limit_s)
        parties.append(session.start("kernel", limit.kernel(setups["other"]), limit_s=sgd.limit_s))
        session.wait_ready(limit_s=sgd.limit_s)
        watcher.phase("rounds", len(parties) * (WARM_UP_ROUNDS + sgd.rounds))
        rounds = interleave(parties, sgd.rounds, on_round=watcher.advance)
    median_s = {name: summarize(items).median for name, items in rounds.items()}
    added_s = median_s["other"] - median_s["sgd"]
    ratio = added_s / median_s["kernel"] if added_s > 0 else None
    print(json.dumps({"ratio": ratio, "median_s": median_s}))


if __name__ == "__main__":
    try:
        main()
    except PsError as error:
        make_error_console().print(f"{type(error).__name__}: {error.message}", markup=False)
        raise SystemExit(exit_code_of(error)) from None
