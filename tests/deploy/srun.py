"""`srun` and `scontrol` for tests: tasks are processes of this machine, with the variables of Slurm.

Run as `srun.py srun ...` and `srun.py scontrol ...`, as by the commands that the test puts on PATH. Hosts are
addresses on loopback, and a task is on the host of its number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path


def srun(words: list[str]) -> int:
    """Starts the tasks, passes SIGTERM on, and ends with the largest code of all."""
    options = [*takewhile(lambda word: word.startswith("--"), words)]
    command = words[len(options) :]
    (count,) = [int(it.partition("=")[2]) for it in options if it.startswith("--ntasks=")]
    hosts = os.environ["SLURM_JOB_NODELIST"].split(",")
    tasks: list[subprocess.Popen[bytes]] = []
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        for task in tasks:
            if task.poll() is None:
                task.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    for number in range(count):
        host = hosts[number * len(hosts) // count]
        own = {
            "SLURM_PROCID": str(number),
            "SLURM_NTASKS": str(count),
            "SLURMD_NODENAME": host,
        }  # as Slurm says it
        tasks.append(subprocess.Popen(command, env=os.environ | own))
    if stopped:  # before all were there
        stop()
    return max(task.wait() for task in tasks)


def scontrol(words: list[str]) -> int:
    """Shows host names, or notes a requeue."""
    if words[:2] == ["show", "hostnames"]:
        print("\n".join(words[2].split(",")))
    else:
        with Path(os.environ["REQUEUED"]).open("a") as file:
            file.write(" ".join(words) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
