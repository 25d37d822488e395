"""The memory of all processes, and whether anything grows with the rounds.

    python benchmarks/footprint.py --model gpt2 --num-workers 4 --optimizer adam --versus gloo
    python benchmarks/footprint.py --model dlrm-dense --rounds 2000

Prints one JSON line: the proportional set size (a page that processes share counts once) of the processes of
the project and of the peer after the last round, and the largest of the project's from there until `finish`
has returned; of the project also the median of the last rounds over that of the first ones (100, or a tenth
where there are fewer than 1,000), and growth of resident memory and of open files from the end of the first
ones to the last round. With a peer, whose rounds take turns with the project's, the last over the first is
that over the peer's: a machine that has grown slower does no harm. The peer is gloo's ranks with flat weights
and gradients, which is the least that DistributedDataParallel can take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from collections.abc import Callable, Sequence

from ps_lab.bench import usage
from ps_lab.bench.figures import Round
from ps_lab.bench.parties import WARM_UP_ROUNDS, interleave
from ps_lab.bench.roundtrip import PROJECT, started
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
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--carrier", default="auto")
    parser.add_argument("--consistency", default="bsp")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--versus", choices=["gloo"])
    return parser.parse_args()


def last_over_first(rounds: Sequence[Round], some: int) -> float:
    """The median of the last rounds over that of the first ones."""
    seconds = [item.seconds for item in rounds]
    return statistics.median(seconds[-some:]) / statistics.median(seconds[:some])


def largest_while(do: Callable[[], None], look: Callable[[], int]) -> int:
    """The largest of what looks have found until `do` was over, and then."""
    found: list[int] = []
    over = threading.Event()

    def looking() -> None:
        while not over.is_set():
            found.append(look())

    watching = threading.Thread(target=looking)
    watching.start()
    try:
        do()
    finally:
        over.set()
        watching.join()
    return max(*found, look())


def main() -> None:
    options = parse()
    setup = Setup(
        model=options.model,
        shapes=of_model(options.model),
        num_servers=1,
        num_workers=options.num_workers,
        asked_carrier=options.carrier,
        consistency=options.consistency,
        optimizer=options.optimizer,
        rounds=options.rounds,
        peers=(options.versus,) if options.versus else (),
        with_limit=False,
    )
    some = max(1, min(100, setup.rounds // 10))
    with showing(make_error_console()) as watcher, started(setup, watcher) as run:
        parties = run.parties
        watcher.phase("rounds", len(parties) * (WARM_UP_ROUNDS + setup.rounds))
        project = parties[0]
        looks: list[tuple[int, int]] = []
        done = 0

        def look() -> None:
            nonlocal done
            watcher.advance()
            done += 1
            if done in (len(parties) * (WARM_UP_ROUNDS + count) for count in (some, setup.rounds)):
                looks.append(
                    (
                        sum(usage.rss_bytes(pid) or 0 for pid in project.pids),
                        sum(usage.open_files(pid) or 0 for pid in project.pids),
                    )
                )

        rounds = interleave(parties, setup.rounds, on_round=look)
        slower = {name: last_over_first(items, some) for name, items in rounds.items()}
        pss = {party.name: usage.pss_bytes(party.pids) for party in parties}
        finish_pss = largest_while(project.finish, lambda: usage.pss_bytes(project.pids) or 0)
    print(
        json.dumps(
            {
                "pss_bytes": pss,
                "finish_pss_bytes": finish_pss,
                "weight_bytes": setup.weight_bytes,
                "last_over_first": slower.pop(PROJECT) / statistics.mean(slower.values() or [1.0]),
                "rss_growth_mib": (looks[-1][0] - looks[0][0]) / 2**20,
                "open_files_growth": looks[-1][1] - looks[0][1],
            }
        )
    )


if __name__ == "__main__":
    try:
        main()
    except PsError as error:
        make_error_console().print(f"{type(error).__name__}: {error.message}", markup=False)
        raise SystemExit(exit_code_of(error)) from None
