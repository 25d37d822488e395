"""`srun` and `scontrol` for tests: tasks are processes of this machine, with the variables of Slurm.

Run as `srun.py srun ...` and `srun.py scontrol ...`, as by the commands that the test puts on PATH. Hosts are
addresses on loopback, and a task is on the host of its number.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from itertools import takewhile
from pathlib import Path

from ps_lab.cluster.process_handle import ProcessHandle

SIGNALLED = 128  # and the signal's number: how a shell says that one has ended a process


def srun(words: list[str]) -> int:
    """Starts the tasks, and ends with the largest code of all.

    As Slurm's does, it passes SIGUSR1 on to all processes of each task; at SIGTERM it ends them with SIGKILL.
    With STORM it passes the first SIGUSR1 on again and again until they have ended: one comes at any moment.
    """
    options = [*takewhile(lambda word: word.startswith("--"), words)]
    command = words[len(options) :]
    (count,) = [int(it.partition("=")[2]) for it in options if it.startswith("--ntasks=")]
    hosts = os.environ["SLURM_JOB_NODELIST"].split(",")
    tasks: list[subprocess.Popen[bytes]] = []
    handles: list[ProcessHandle] = []
    came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def pass_on() -> None:
        while True:
            number = came.get()
            for handle in handles:
                handle.send_group(signal.SIGKILL if number == signal.SIGTERM else number)
            while number == signal.SIGUSR1 and os.environ.get("STORM"):
                for handle in handles:
                    handle.send_group(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda it, _: came.put(it))
    for number in range(count):
        host = hosts[number * len(hosts) // count]
        own = {
            "SLURM_PROCID": str(number),
            "SLURM_NTASKS": str(count),
            "SLURMD_NODENAME": host,
            "CPUS": os.environ.get("SRUN_CPUS_PER_TASK", "1"),  # to which the task is bound
        }
        tasks.append(subprocess.Popen(command, env=os.environ | own, start_new_session=True))
        handles.append(ProcessHandle(tasks[-1].pid))
    threading.Thread(target=pass_on, daemon=True).start()  # what came before is there
    codes = [task.wait() for task in tasks]
    for number in (signal.SIGTERM, signal.SIGUSR1):  # else, as Python ends, they are what they were before
        signal.signal(number, signal.SIG_IGN)
    return max(SIGNALLED - code if code < 0 else code for code in codes)


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
