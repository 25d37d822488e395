"""An evaluator beside training: it reads the weights of a job that trains, and keeps the best.

    PS_SERVERS=127.0.0.1:50051 PS_JOB=local python examples/tutorials/evaluator.py --save best.pt

docs/tutorials/evaluator.md explains it.
"""

import argparse
import time
from pathlib import Path

import torch
from planted import Net, load, measure

import ps_worker as ps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("--save", type=Path, help="a file for the best weights")
    args = parser.parse_args()

    held_out = load()[1]
    model = Net().eval()
    best = -1.0
    with ps.connect(role="reader", wait=600) as reader:
        ended = False
        while not ended:
            cut = reader.read(model)
            ended = cut.ended
            loss, accuracy = measure(model, held_out)
            print(f"version {cut.version}: loss {loss:.3f}, accuracy {accuracy:.3f}", flush=True)
            if accuracy > best:
                best = accuracy
                if args.save:
                    half = args.save.with_suffix(".half")
                    torch.save({"version": cut.version, "model": model.state_dict()}, half)
                    half.replace(args.save)
            if not ended:
                time.sleep(args.every)
    print(f"the job has ended; the best accuracy was {best:.3f}")


if __name__ == "__main__":
    main()
