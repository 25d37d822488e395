"""What a token costs in a round: pushing a table and pulling it, with and without one.

    python benchmarks/token_cost.py --rounds 200

Two services of one server, one of which wants a token; each has one worker that pushes and pulls a table of
64 MiB under plain SGD (bsp). The two take turns, a few rounds each. Prints one JSON line: the median round of
each, in seconds, and their quotient. Target: 1.02.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from party import Party

TURN = 5  # rounds
SCRIPT = """
import sys, time, torch, ps_worker as ps
torch.set_num_threads(1)
tensors = {str(i): torch.ones(1 << 20) for i in range(16)}
with ps.connect() as worker:
    table = worker.table(tensors, optimizer=ps.SGD(lr=1e-6))
    for turn in sys.stdin:
        for _ in range(int(turn)):
            began_s = time.perf_counter()
            table.push(tensors)
            table.pull(tensors).result()
            print(time.perf_counter() - began_s, flush=True)
"""


class Timed:
    """A service and its worker, and how long its rounds took."""

    def __init__(self, stack: ExitStack, carrier: str, environment: dict[str, str]) -> None:
        made = {name: value for name, value in os.environ.items() if name != "PS_TOKEN_FILE"} | environment
        own = {"PS_JOB": "tokens", "PS_CARRIER": carrier}
        self._party = Party(stack, SCRIPT, servers=1, environment=made, **own)
        self.rounds_s: list[float] = []

    def turn(self) -> list[float]:
        """Seconds of each of the next rounds."""
        return [float(line) for line in self._party.turn(TURN, lines=TURN)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--carrier", default="tcp")
    options = parser.parse_args()
    with ExitStack() as stack:
        token = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        environments: list[dict[str, str]] = [{"PS_TOKEN_FILE": str(token)}, {}]
        parties = [Timed(stack, options.carrier, environment) for environment in environments]
        for party in parties:
            party.turn()  # overlap, memory: not counted
        for number in range(-(-options.rounds // TURN)):
            for party in parties if number % 2 else reversed(parties):
                party.rounds_s += party.turn()
    on_s, off_s = (statistics.median(party.rounds_s) for party in parties)
    print(json.dumps({"carrier": options.carrier, "on_s": on_s, "off_s": off_s, "on_over_off": on_s / off_s}))


if __name__ == "__main__":
    main()
