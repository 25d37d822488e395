"""Overlays that are executed: `python -m tests.deploy.scenarios NAME FOLDER`, in namespaces of its own.

Each scenario ends with 0 if the job has ended with the right bytes.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from ps_lab.cluster.certificate_authority import make_certificates
from ps_lab.cluster.cluster import command_path
from tests.faults.links import Disk
from tests.integration.processes import LIMIT_S, Process, Zygote
from tests.until import until

from . import compose
from .cluster import Cluster, Node, open_bridge
from .manifests import Object, after, containers, of_kind, one, overlay, pods, with_components
from .trainer import LR, MOMENTUM, NUMEL, OVER, gradient

TOKEN = base64.b64encode(b"0123456789abcdef0123456789abcdef\n").decode()
READY = "serving on"
SNAPSHOT = "snapshot /var/lib/ps/snapshots/digits/"


class Training:
    """Processes of servers and workers.

    Attributes:
        cluster: that they are in.
        names: of the processes, by "server" and "worker".
        processes: by name.
    """

    def __init__(self, cluster: Cluster, names: Mapping[str, Sequence[str]]) -> None:
        self.cluster = cluster
        self.names = names
        self.processes: dict[str, Process] = {}

    def wait_steps(self, since_s: float | None = None) -> float:
        """Until every worker has taken steps from now on; seconds until the first one had."""
        began_s = time.monotonic() if since_s is None else since_s
        first_s = 0.0
        workers = [self.processes[name] for name in self.names["worker"]]
        before = [len(worker.lines) for worker in workers]
        for worker, lines in zip(workers, before, strict=True):
            until(lambda w=worker, n=lines: steps_of(w.lines[n:]) or w.is_over, f"{worker.name} goes on")
            assert not worker.is_over, f"{worker.end}\n{worker.text}"
            first_s = first_s or time.monotonic() - began_s
        return first_s

    def finish(self) -> None:
        """The job comes to its end: all workers with 0, then the servers, by SIGTERM."""
        (self.cluster.folder / OVER).touch()
        workers = [self.processes[name] for name in self.names["worker"]]
        for worker in workers:
            assert worker.wait_end() == 0, f"{worker.end}\n{worker.text}"
        for name in self.names["server"]:
            self.processes[name].signal(signal.SIGTERM)
            assert self.processes[name].wait_end() == 0, self.processes[name].text

    def finals(self) -> list[np.ndarray]:
        """Of all workers, which are the same."""
        count = len(self.names["worker"])
        found = [
            np.fromfile(self.cluster.folder / f"final-{rank}", dtype=np.float32) for rank in range(count)
        ]
        assert all(np.array_equal(it, found[0]) for it in found), "workers have other weights than each other"
        return found

    def check_bytes(self) -> int:
        """The weights are those of an undisturbed job of so many steps; how many."""
        text = self.processes[self.names["worker"][0]].text
        steps = int(re.findall(r"finished at version (\d+)", text)[-1])
        weights = torch.nn.Parameter(torch.zeros(NUMEL))
        optimizer = torch.optim.SGD([weights], lr=LR, momentum=MOMENTUM)
        for step in range(steps):
            weights.grad = gradient(step)
            optimizer.step()
        assert steps > 0
        assert np.array_equal(self.finals()[0], weights.detach().numpy()), f"not the weights of {steps} steps"
        return steps


class Pods(Training):
    """The pods of an overlay, running.

    Attributes:
        job: that the workers belong to.
    """

    def __init__(self, cluster: Cluster, objects: tuple[Object, ...], **secrets: dict[str, Path]) -> None:
        """Starts all; `secrets` are by component, those that somebody else makes."""
        for secret in of_kind(objects, "Secret"):
            secret["data"] = {"token": TOKEN}
        self._secrets = secrets
        self._pods = {pod.name: pod for pod in pods(objects)}
        self._nodes: dict[str, Node] = {}
        self.job = one(objects, "Job", "ps-worker")
        super().__init__(
            cluster,
            {
                component: [name for name in self._pods if name.startswith(f"ps-{component}-")]
                for component in ("server", "worker")
            },
        )
        for name in [*self.names["server"], *self.names["worker"]]:
            self.begin(name)

    def begin(self, name: str) -> Process:
        """A process of that pod, on a node that has none; its name then leads there."""
        component = name.split("-")[1]
        node = self._nodes[name] = self.cluster.node()
        self.cluster.name(f"{name}.ps-server", node)
        process = self.cluster.start(self._pods[name], node, **self._secrets.get(component, {}))
        self.processes[name] = process
        return process

    def vanish(self, name: str) -> None:
        """Its node does."""
        self._nodes[name].vanish()


def steps_of(lines: Sequence[str]) -> list[int]:
    """That are said in them."""
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def train(cluster: Cluster, objects: tuple[Object, ...], **secrets: dict[str, Path]) -> Pods:
    """Nothing happens."""
    service = Pods(cluster, objects, **secrets)
    service.wait_steps()
    service.finish()
    service.finals()
    return service


def moved(cluster: Cluster) -> None:
    """A shard's pod is stopped, and its next one, with its volume, has another address."""
    service = Pods(cluster, overlay("local"))
    service.wait_steps()
    old = service.processes["ps-server-1"]
    old.signal(signal.SIGTERM)
    assert old.wait_end() == 0, old.text
    service.begin("ps-server-1").wait_line(READY)
    print(f"workers went on {service.wait_steps():.1f} s after the shard served elsewhere")
    service.processes["ps-server-0"].wait_line(SNAPSHOT)
    service.finish()
    service.check_bytes()
    export(cluster.folder, service.names["server"])


def export(folder: Path, servers: Sequence[str]) -> None:
    """As `kubectl cp` and `ps-lab snapshot export` do: the shards' files in one folder make one model."""
    merged, model = folder / "merged", folder / "model.safetensors"
    for name in servers:
        shutil.copytree(folder / "volumes" / name / "state" / "snapshots", merged, dirs_exist_ok=True)
    words = ("snapshot", "export", str(merged), "--job", "digits", "--to", str(model))
    done = subprocess.run(
        [command_path("ps-lab"), *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (weights,) = load_file(model).values()
    assert weights.shape == (NUMEL,)


def rescheduled(cluster: Cluster) -> None:
    """A worker's pod is evicted: it ends with 75, and the Job makes another one, elsewhere."""
    service = Pods(cluster, overlay("local"))
    service.wait_steps()
    before = service.processes["ps-worker-1"]
    before.signal(signal.SIGTERM)
    code = before.wait_end()
    assert (code, after(service.job, code)) == (75, "Restart"), before.text
    service.begin("ps-worker-1")
    service.wait_steps()
    service.finish()
    service.check_bytes()


def restarted(cluster: Cluster) -> None:
    """All servers, one after the other, the last one first, as `kubectl rollout restart` does."""
    service = Pods(cluster, overlay("bsp"))
    service.wait_steps()
    for name in reversed(service.names["server"]):
        old = service.processes[name]
        old.signal(signal.SIGTERM)
        assert old.wait_end() == 0, old.text
        service.begin(name).wait_line(READY)
        service.wait_steps()
    for name in service.names["worker"]:
        assert "rolled back" not in service.processes[name].text
    service.finish()
    service.check_bytes()


def vanished(cluster: Cluster) -> None:
    """A shard's node does; the shard's next pod, elsewhere and with its volume, goes on from the snapshot."""
    cluster.limit(  # else a holder that is silent is noticed after 5 s, and a connection that is after 15
        ps_server__coordinator__fleet__fleet__PROVE_LIMIT_S=1.0,
        ps_worker__transport__liveness__SILENT_S=0.5,
        ps_worker__transport__liveness__ANSWER_LIMIT_S=2.0,
    )
    service = Pods(cluster, overlay("local"))
    service.wait_steps()
    service.processes["ps-server-0"].wait_line(SNAPSHOT)
    service.vanish("ps-server-1")
    service.begin("ps-server-1")
    for name in service.names["worker"]:
        service.processes[name].wait_line("rolled back to")
    service.wait_steps()
    service.finish()
    service.check_bytes()


def tls(cluster: Cluster) -> None:
    """Certificates as cert-manager puts them into secrets."""
    objects = with_components(cluster.folder / "kustomization", "overlays/bsp", "tls")
    names = one(objects, "Certificate", "ps-server")["spec"]["dnsNames"]
    made = cluster.folder / "certificates"
    make_certificates(made, hosts=tuple(names), days=1, force=False)
    service = train(cluster, objects, server={"tls": made / "server"}, worker={"tls": made / "worker"})
    text = service.processes["ps-worker-0"].text
    assert "data goes over tcp" in text, text


def one_pod(cluster: Cluster) -> None:
    """All containers of one pod: they share a network, and memory."""
    objects = overlay("one-pod")
    (pod,) = pods(objects)
    node = cluster.node()
    started = {it["name"]: cluster.start(pod, node, container=it) for it in containers(pod.workload)}
    workers = [started[name] for name in started if name.startswith("worker")]
    for worker in workers:
        until(lambda w=worker: steps_of(w.lines) or w.is_over, "it trains")
        assert "data goes over shm" in worker.text, worker.text
    (cluster.folder / OVER).touch()
    for worker in workers:
        assert worker.wait_end() == 0, worker.text
    for name in ("server-0", "server-1"):
        started[name].signal(signal.SIGTERM)
        assert started[name].wait_end() == 0, started[name].text


def bad_token(cluster: Cluster) -> None:
    """As it is shipped, and with two tokens that are not the same."""
    objects = overlay("bsp")
    server, worker = (pod for pod in pods(objects) if pod.index == 0)
    for pod in (server, worker):
        process = cluster.start(pod, cluster.node())
        assert process.wait_end() == 78, process.text
        assert "holds no token" in process.lines[-1]
        assert "openssl rand -hex 32" in process.lines[-1]
    job = one(objects, "Job", "ps-worker")
    assert after(job, 78) == "FailIndex"


def counts(cluster: Cluster) -> None:
    """A StatefulSet that was scaled, and nothing else: each pod says what disagrees."""
    objects = overlay("local")
    one(objects, "StatefulSet", "ps-server")["spec"]["replicas"] = 3
    added = [pod for pod in pods(objects) if pod.name == "ps-server-2"]
    process = cluster.start(added[0], cluster.node())
    assert process.wait_end() == 64, process.text
    assert "2/2" in process.lines[-1]


def other_count(cluster: Cluster) -> None:
    """Volumes of two shards, each with its part of the snapshots, under one server: nobody begins anew."""
    service = Pods(cluster, overlay("local"))
    service.processes["ps-server-0"].wait_line(SNAPSHOT)
    for process in service.processes.values():
        process.kill()
    objects = overlay("local")
    one(objects, "StatefulSet", "ps-server")["spec"]["replicas"] = 1
    (shard,) = [
        it
        for it in containers(one(objects, "StatefulSet", "ps-server"))[0]["env"]
        if it["name"] == "PS_SHARD"
    ]
    shard["value"] = "$(POD_INDEX)/1"
    one(objects, "ConfigMap", "ps-job")["data"]["PS_SERVERS"] = "ps-server-0.ps-server:50051"
    again = Pods(cluster, objects)
    for name in again.names["worker"]:
        worker = again.processes[name]
        assert worker.wait_end() == 65, worker.text
        assert "is of 2 servers, here are 1" in worker.lines[-1]
        assert "Start 2 servers" in worker.lines[-1]
    assert after(again.job, 65) == "FailIndex"


def volumes(cluster: Cluster) -> None:
    """A shard's volume cannot be written to, or is full."""
    objects = overlay("local")
    shard = next(pod for pod in pods(objects) if pod.name == "ps-server-1")
    volume = cluster.folder / "volumes" / shard.name / "state"
    volume.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(volume)], check=True)
    refused = cluster.start(shard, cluster.node())
    assert refused.wait_end() == 78, refused.text
    assert "--state-dir /var/lib/ps/state: Read-only file system" in refused.lines[-1]
    subprocess.run(["umount", str(volume)], check=True)
    with Disk(volume / "state") as disk:
        disk.fill()
        warned = cluster.start(shard, cluster.node())
        warned.wait_line("WARNING.*--state-dir /var/lib/ps/state: No space left on device.*make room there")
        warned.kill()


class Compose(Training):
    """The containers of the compose file, running."""

    def __init__(self, cluster: Cluster) -> None:
        self._services = compose.read()
        self._nodes = {name: cluster.node() for name in self._services}
        self._secrets = cluster.folder / "secrets"
        self._secrets.mkdir()
        (self._secrets / "token").write_bytes(base64.b64decode(TOKEN))
        for name, node in self._nodes.items():
            cluster.name(name, node)
        super().__init__(
            cluster,
            {
                role: [name for name in self._services if name.startswith(f"{role}-")]
                for role in ("server", "worker")
            },
        )
        self.up()

    def up(self) -> None:
        """As `docker compose up` does."""
        for name, service in self._services.items():
            files = {"/run/secrets": self._secrets}
            for target, volume in service.volumes.items():
                files[target] = self.cluster.folder / "volumes" / volume
                files[target].mkdir(parents=True, exist_ok=True)
            command = service.command
            self.processes[name] = self.cluster.run(command, self._nodes[name], service.environment, files)

    def healthy(self, name: str) -> bool:
        """What the image's HEALTHCHECK says of a server."""
        port = self._services[name].environment["PS_HEALTH_PORT"]
        asked = ("ps-lab", "health", f"127.0.0.1:{port}", "--liveness", "--limit", "100")
        return self.cluster.run(asked, self._nodes[name], {}, {}).wait_end() == 0

    def stop(self) -> None:
        """As `docker compose stop` does: who depends on others first."""
        for role, code in (("worker", 75), ("server", 0)):
            for name in self.names[role]:
                self.processes[name].signal(signal.SIGTERM)
            for name in self.names[role]:
                assert self.processes[name].wait_end() == code, self.processes[name].text


def composed(cluster: Cluster) -> None:
    """Trains, is stopped, comes up again and goes on where it was."""
    service = Compose(cluster)
    service.wait_steps()
    assert all(service.healthy(name) for name in service.names["server"])
    service.stop()
    service.up()
    service.wait_steps()
    for name in service.names["worker"]:
        assert "rolled back" not in service.processes[name].text
    service.finish()
    service.check_bytes()


SCENARIOS: dict[str, Callable[[Cluster], object]] = {
    "moved": moved,
    "rescheduled": rescheduled,
    "restarted": restarted,
    "vanished": vanished,
    "ssp": lambda cluster: train(cluster, overlay("ssp")),
    "asp": lambda cluster: train(cluster, overlay("asp")),
    "tls": tls,
    "one-pod": one_pod,
    "bad token": bad_token,
    "counts": counts,
    "volumes": volumes,
    "other count": other_count,
    "compose": composed,
}


def main(*names: str) -> None:
    """Runs them, each in a cluster of its own."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    open_bridge()
    with closing(Zygote()) as zygote:
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                began_s = time.monotonic()
                with closing(Cluster(Path(folder), zygote)) as cluster:
                    SCENARIOS[name](cluster)
            print(f"{name}: held, {time.monotonic() - began_s:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
