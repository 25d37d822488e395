"""`ps-lab bench roundtrip` with the peers that need environments of their own, too: mxnet and tensorflow.

make bench-peers
python benchmarks/roundtrip.py --carrier tcp --versus mxnet,tensorflow
"""

from __future__ import annotations

import argparse
from pathlib import Path

from peers import ALL_PEERS

from ps_lab.bench.cli import use_tls, write_json
from ps_lab.bench.report import roundtrip_table
from ps_lab.bench.roundtrip import measure
from ps_lab.bench.setup import Setup, parse_peers
from ps_lab.bench.shapes import of_model
from ps_lab.bench.watcher import showing
from ps_lab.cluster.display import make_console, make_error_console
from ps_lab.errors import exit_code_of
from ps_lab.outputs import check_file
from ps_wire.errors import PsError


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--num-servers", type=int, default=1)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--carrier", default="auto")
    parser.add_argument("--consistency", default="bsp")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--versus", default="mxnet", help=",".join(ALL_PEERS))
    parser.add_argument("--tls-dir", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    setup = Setup(
        model=options.model,
        shapes=of_model(options.model),
        num_servers=options.num_servers,
        num_workers=options.num_workers,
        asked_carrier=options.carrier,
        consistency=options.consistency,
        optimizer=options.optimizer,
        rounds=options.rounds,
        peers=parse_peers(options.versus, tuple(ALL_PEERS)),
        with_limit=True,
        tls_dir=use_tls(options.tls_dir),
    )
    check_file(options.json, "--json")
    with showing(make_error_console()) as watcher:
        outcome = measure(setup, watcher, peers=ALL_PEERS)
    make_console().print(roundtrip_table(outcome))
    write_json(options.json, outcome.to_json())


if __name__ == "__main__":
    try:
        main()
    except PsError as error:
        make_error_console().print(f"{type(error).__name__}: {error.message}", markup=False)
        raise SystemExit(exit_code_of(error)) from None
