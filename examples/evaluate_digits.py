"""Evaluates the weights of `digits.py` on its test digits while it trains: as a reader of the job.

    PS_SERVERS=127.0.0.1:50051 PS_JOB=local python examples/evaluate_digits.py

It prints a JSON object for each look at the weights, until the job has ended. `ps-lab compare` starts it
beside each run (`evaluation` in examples/experiments/quick.toml). A reader is no worker: nobody waits for it,
but a push that is not in its cut is held back while the cut is sent.
"""

import json
import os
import time

import torch
from digits import Net, load
from torch import nn

import ps_worker as ps


def main() -> None:
    every_s = float(os.environ.get("PS_EVALUATE_EVERY", "1"))
    images, labels = load()[1].tensors
    model = Net().eval()
    with ps.connect(role="reader", wait=600) as reader:
        ended = False
        while not ended:
            asked_s = time.perf_counter()
            cut = reader.read(model)
            held_s = time.perf_counter() - asked_s  # pushes were held for no longer than this
            ended = cut.ended
            look = {"unix_s": time.time(), "held_s": held_s, "version": cut.version}
            with torch.no_grad():
                answers = model(images)
            look["accuracy"] = (answers.argmax(dim=1) == labels).float().mean().item()
            look["test_loss"] = nn.functional.cross_entropy(answers, labels).item()
            print(json.dumps(look), flush=True)
            time.sleep(0.0 if ended else max(0.0, every_s - held_s))


if __name__ == "__main__":
    main()
