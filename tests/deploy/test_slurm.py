"""The batch script, run with commands in the place of Slurm's: servers, workers, requeues."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ps_lab.cluster.cluster import command_path
from ps_lab.cluster.ports import free_ports
from ps_lab.cluster.process_handle import ProcessHandle
from tests.integration.processes import ENVIRONMENT, Process
from tests.until import LIMIT_S, until

from .manifests import DEPLOY, ROOT
from .scenarios import READY, steps_of
from .trainer import OVER

pytestmark = pytest.mark.integration

SCRIPT = DEPLOY / "slurm" / "train.sbatch"
TRAINER = str(Path(__file__).with_name("trainer.py"))
# In the place of a command: it says with which variables it was started, and ends as the test wants. Workers
# end when both servers have said so: those are stopped then. Where servers end by themselves, or workers are
# to be stopped, these wait, each with a process of its own beside it.
STAND_IN = """#!/bin/sh
stop() {
    trap 'echo "told twice"' TERM
    echo "told to end: $(basename "$0")"
    sleep "${TAKES_S:-0}"
    if [ -n "$beside" ]; then kill -KILL "$beside"; wait "$beside"; echo "beside it: $?"; fi
    exit "${STOPPED:-0}"
}
trap stop TERM
place="$PS_SHARD$PS_WORKER $PS_SERVERS $PS_COORDINATOR $PS_ADVERTISE $PS_NUM_WORKERS"
echo "$(basename "$0") $place $OMP_NUM_THREADS/$CPUS $*"
case "$0" in *ps-worker)
    while [ "$(ls "$STANDING" | wc -l)" -lt 2 ]; do sleep 0.02; done
    if [ -n "$SERVED$STOPPED" ]; then
        sleep 600 & beside=$!
        : > "$STANDING/waits-$PS_WORKER"
        while :; do sleep 0.02; done
    fi
    exit "${CODE:-0}";;
esac
unset STOPPED
: > "$STANDING/${PS_SHARD%/*}"
if [ -n "$SERVED" ]; then while [ "$(ls "$STANDING" | wc -l)" -lt 6 ]; do sleep 0.02; done; exit "$SERVED"; fi
while :; do sleep 0.1; done
"""


class Slurm:
    """An allocation on this machine; its hosts are names."""

    def __init__(self, folder: Path, hosts: str, num_tasks: int) -> None:
        self.folder = folder
        self.requeued = folder / "requeued"
        self.tools = folder / "tools"
        self.tools.mkdir()
        self.standing = folder / "standing"
        self.standing.mkdir()
        for name in ("srun", "scontrol"):
            fake = Path(__file__).with_name("srun.py")
            self.put(name, f'#!/bin/sh\nexec {sys.executable} {fake} {name} "$@"\n')
        port, data_port = map(str, free_ports(2))
        self._environment = ENVIRONMENT | {
            "PATH": f"{self.tools}:{Path(command_path('ps-server')).parent}:{ENVIRONMENT['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PS_RUNS": str(folder / "runs"),
            "PS_HOST": "127.0.0.1",
            "PS_PORT": port,
            "PS_DATA_PORT": data_port,
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "trial",
            "SLURM_JOB_NODELIST": hosts,
            "SLURM_NTASKS": str(num_tasks),
            "SLURM_CPUS_PER_TASK": "4",
            "REQUEUED": str(self.requeued),
            "STANDING": str(self.standing),
        }
        self._running: list[Process] = []

    def put(self, name: str, text: str) -> None:
        """A command on the PATH of the batch script."""
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def submit(self, *words: str, **environment: str) -> Process:
        """Runs the script."""
        started = subprocess.Popen(
            ["bash", str(SCRIPT), *words],
            env=self._environment | environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert started.stdout is not None
        self._running.append(Process("sbatch", started.pid, started.stdout, started.wait))
        return self._running[-1]

    def close(self) -> None:
        """Ends what still runs: the script ends its tasks."""
        for process in self._running:
            process.signal(signal.SIGTERM)
            process.wait_end()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Slurm]:
    """One server and one worker, of the real commands."""
    made = Slurm(tmp_path, "127.0.0.1", 1)
    yield made
    made.close()


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[Slurm]:
    """Two nodes with four tasks, and what stands in for the commands."""
    made = Slurm(tmp_path, "node-a,node-b", 4)
    for name in ("ps-server", "ps-worker"):
        made.put(name, STAND_IN)
    yield made
    made.close()


def wait_steps(job: Process) -> None:
    """Until its server serves, and then until its worker has taken steps."""
    job.wait_line(READY)
    until(lambda: steps_of(job.lines) or job.is_over, "it trains")
    assert steps_of(job.lines), job.text


def test_a_job_that_is_stopped_is_requeued_and_goes_on_where_it_was(small: Slurm):
    first = small.submit(TRAINER, str(small.folder))
    wait_steps(first)
    first.signal(signal.SIGUSR1)
    assert first.wait_end() == 75, first.text
    assert "a server ended with" not in first.text
    assert small.requeued.read_text() == "requeue 7\n"
    before = max(steps_of(first.lines))
    again = small.submit(TRAINER, str(small.folder), SLURM_RESTART_COUNT="1")
    wait_steps(again)
    (small.folder / OVER).touch()
    assert again.wait_end() == 0, again.text
    assert min(steps_of(again.lines)) > before, "it went on where it was, and did not begin anew"
    assert "finished at version" in again.text
    assert small.requeued.read_text() == "requeue 7\n"
    assert (small.folder / "runs" / "trial-7" / "token").stat().st_mode & 0o077 == 0


def test_each_task_gets_its_place_from_slurms_variables(stand_ins: Slurm):
    ended = stand_ins.submit("train.py", "--lr", "1", PS_PORT="5000", OMP_NUM_THREADS="")
    assert ended.wait_end() == 0, ended.text
    where = "node-a:5000,node-b:5000"
    expected = [f"ps-server {n}/2 {where} node-a:5000 node-{'ab'[n]} 4 4/4 " for n in range(2)]
    expected += [f"ps-worker {n} {where}   4 4/4 train.py --lr 1" for n in range(4)]
    assert sorted(line for line in ended.lines if line.startswith("ps-")) == expected


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [(75, 0, True), (69, 3, True), (75, 20, False), (78, 0, False), (1, 0, False)],
)
def test_what_goes_on_where_it_was_is_requeued_so_many_times(
    stand_ins: Slurm, code: int, restarts: int, again: bool
):
    """75 a signal, 69 a lost server; what was refused or has failed is not tried again."""
    ended = stand_ins.submit("x.py", CODE=str(code), SLURM_RESTART_COUNT=str(restarts))
    assert ended.wait_end() == code, ended.text
    assert stand_ins.requeued.exists() == again


@pytest.mark.parametrize(
    ("number", "code", "again"),
    [
        (signal.SIGUSR1, 75, True),
        (signal.SIGUSR1, 137, True),  # killed: it did not stop in time
        (signal.SIGUSR1, 1, False),
        (signal.SIGTERM, 75, False),  # cancelled
    ],
)
def test_workers_are_stopped_before_servers_and_what_they_have_started_is_left_to_them(
    stand_ins: Slurm, number: signal.Signals, code: int, again: bool
):
    ended = stand_ins.submit("x.py", STOPPED=str(code), TAKES_S="2.5" if code == 137 else "0")
    until(lambda: len([*stand_ins.standing.glob("waits-*")]) == 4 or ended.is_over, "all run")
    ended.signal(number)
    if code == 137:  # the time is over
        until(
            lambda: ended.text.count("told to end: ps-worker") == 4 or ended.is_over,
            "workers have heard of it",
        )
        ended.signal(signal.SIGTERM)
    assert ended.wait_end() == code, ended.text
    assert [line for line in ended.lines if line.startswith("beside")] == ["beside it: 137"] * 4
    assert "told twice" not in ended.text
    assert "a server" not in ended.text
    assert stand_ins.requeued.exists() == again


def test_a_signal_that_comes_just_as_a_task_has_ended_is_not_how_it_ended(stand_ins: Slurm):
    """Slurm passes them on as they come, and each breaks off what a shell waits for."""
    ended = stand_ins.submit("x.py", STOPPED="75", STORM="1")
    until(lambda: len([*stand_ins.standing.glob("waits-*")]) == 4 or ended.is_over, "all run")
    ended.signal(signal.SIGUSR1)
    assert ended.wait_end() == 75, ended.text
    assert "told twice" not in ended.text
    assert "a server" not in ended.text
    assert stand_ins.requeued.read_text() == "requeue 7\n"


def functions(*names: str) -> list[str]:
    """Of the batch script."""
    text = SCRIPT.read_text()
    found = [re.findall(rf"^{name}\(\) {{.*?(?: |^)}}\n", text, re.DOTALL | re.MULTILINE) for name in names]
    return [one for (one,) in found]


def test_what_a_batch_script_waits_for_has_its_code_whatever_comes_meanwhile():
    """Signals come all the time, also in the moment in which bash hears of an end."""
    ends = "for _ in {1..20}; do (exit 75) & code_of $!; echo $code; done"
    lines = ["set -u", *functions("runs", "moment", "code_of"), "moment() { sleep 0.001; }"]
    command = ["bash", "-c", "\n".join([*lines, "trap came=1 USR1", "echo ready", ends])]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        handle = ProcessHandle(shell.pid)
        with ThreadPoolExecutor() as beside:
            said = beside.submit(shell.stdout.read)
            try:
                until(
                    lambda: handle.send(signal.SIGUSR1) or said.done(), "all codes are said", pause_s=0.0001
                )
            finally:
                handle.send(signal.SIGKILL)
                handle.close()
        assert said.result() == "75\n" * 20


def test_a_task_is_told_once_though_it_is_to_be_told_again_just_then(tmp_path: Path):
    """A signal that a shell has a command for is heard in the midst of that command, too."""
    (task,) = re.findall(r"^task='\n(.*?)'\n", SCRIPT.read_text(), re.DOTALL | re.MULTILINE)
    told, started = tmp_path / "told", tmp_path / "started"
    again = f'[ -e {told} ] || at=$BASHPID; echo told >> {told}; [ -z "$at" ] || builtin kill -USR1 "$at"'
    kill = f'kill() {{\nif [ "$1" = -TERM ]; then at=; {again}; fi\nbuiltin kill "$@"\n}}\n'
    runs = f"run sh -c ': > {started}; exec sleep 600'"
    with subprocess.Popen(["bash", "-c", f"{kill}{task}{runs}"], start_new_session=True) as shell:
        handle = ProcessHandle(shell.pid)
        try:
            until(lambda: started.exists() or shell.poll() is not None, "the task runs")
            until(
                lambda: handle.send_group(signal.SIGUSR1) or shell.poll() is not None,
                "the task has ended",
                pause_s=0.05,
            )
        finally:
            handle.send_group(signal.SIGKILL)
            handle.close()
    assert shell.returncode == 128 + signal.SIGTERM
    assert told.read_text() == "told\n"


@pytest.mark.parametrize(
    ("served", "code", "again"), [(69, 69, True), (137, 69, True), (78, 78, False), (64, 64, False)]
)
def test_where_servers_end_first_workers_are_stopped(stand_ins: Slurm, served: int, code: int, again: bool):
    """And the job is tried again, unless the servers would refuse the same once more."""
    ended = stand_ins.submit("x.py", SERVED=str(served), STOPPED="75")
    assert ended.wait_end() == code, ended.text
    assert "train.sbatch: a server has ended: the workers are stopped" in ended.lines
    assert f"train.sbatch: a server ended with {served}; the workers with 75" in ended.lines
    assert stand_ins.requeued.exists() == again


def test_a_server_whose_port_is_taken_keeps_no_worker_waiting(small: Slurm):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = small.submit(TRAINER, str(small.folder), PS_DATA_PORT=port)
        assert ended.wait_end(2 * LIMIT_S) == 69, ended.text  # a server, a worker, scontrol
    assert f"127.0.0.1:{port}" in ended.text
    assert small.requeued.exists()


def test_without_a_script_or_slurm_it_says_so(stand_ins: Slurm):
    assert stand_ins.submit().wait_end() == 64
    without = stand_ins.submit("x.py", SLURM_JOB_ID="")
    assert without.wait_end() != 0
    assert "this is a batch script" in without.text
