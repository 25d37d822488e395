"""A cluster of processes: each pod has a network of its own, and all read one file of names.

It works inside the namespaces that `tests.faults.links.UNSHARE` makes. A pod's process has exactly the
environment that its container would have, its volumes at their places, and as its command what the manifest
says; but for the image's example, in whose place `trainer.py` trains.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ps_lab.cluster.namespace import Namespace
from tests.faults import limits as faults_limits
from tests.faults import links
from tests.integration.processes import LIMIT_S, Process, Zygote

from . import pod_entry
from .manifests import Object, Pod, containers, expand

BRIDGE = "br0"
TRAINER = str(Path(__file__).with_name("trainer.py"))


def open_bridge() -> None:
    """The network between the nodes."""
    links.ip("link", "set", "lo", "up")
    links.ip("link", "add", BRIDGE, "type", "bridge")
    links.ip("addr", "add", "10.88.0.1/16", "dev", BRIDGE)
    links.ip("link", "set", BRIDGE, "up")


class Node:
    """A network with an address, which a pod is in.

    Attributes:
        address: of the pod.
    """

    def __init__(self, number: int) -> None:
        self.address = f"10.88.0.{number}"
        self._name = f"n{number}"
        self._namespace = Namespace()
        pid = str(self._namespace.pid)
        links.ip("link", "add", self._name, "type", "veth", "peer", "name", "eth0", "netns", pid)
        links.ip("link", "set", self._name, "master", BRIDGE, "up")
        for words in (
            ("addr", "add", f"{self.address}/16", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            subprocess.run([*self._namespace.enter, "ip", *words], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that is to be on it."""
        return {links.ENTER: self._namespace.path}

    def vanish(self) -> None:
        """Nothing reaches it any more, and nobody is told."""
        links.ip("link", "set", self._name, "nomaster")

    def close(self) -> None:
        """Takes it away; its processes have ended."""
        links.ip("link", "del", self._name)  # else it goes with the namespace, some time later
        self._namespace.close()


class Cluster:
    """Pods that run. Volumes and the file of names are in a folder.

    Attributes:
        folder: what else a test puts there is its own.
    """

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.folder = folder
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._names: dict[str, str] = {}
        self._numbers = iter(range(2, 250))
        self._zygote = zygote
        self._limits: dict[str, str] = {}
        self._stack = ExitStack()

    def close(self) -> None:
        """Ends all that still runs."""
        self._stack.close()

    def limit(self, **limits: float) -> None:
        """Has pods that are started from now on wait less long: names as in `tests.faults.limits`."""
        self._limits = {faults_limits.LIMITS: faults_limits.text(**limits)}

    def node(self) -> Node:
        """One that has no pod yet."""
        node = Node(next(self._numbers))
        self._stack.callback(node.close)
        return node

    def name(self, name: str, node: Node) -> None:
        """From now on the name is this node's: DNS is right."""
        self._names[name] = node.address
        lines = [f"{address} {known}\n" for known, address in self._names.items()]
        text = "127.0.0.1 localhost\n" + "".join(lines)
        with self._hosts.open("r+b", buffering=0) as file:  # pods read it: never empty, never another
            file.write(text.encode().ljust(self._hosts.stat().st_size, b"\n"))

    def start(self, pod: Pod, node: Node, *, container: Object | None = None, **secrets: Path) -> Process:
        """Starts one container of a pod on a node; its name is the caller's to give.

        Args:
            pod: of a workload.
            node: where.
            container: which; default: the only one.
            secrets: by the name of a volume, the folder that stands for a secret of somebody else.
        """
        it = containers(pod.workload)[0] if container is None else container
        environment = pod.environment(it)
        command = [expand(word, environment) for word in [*it["command"], *it.get("args", ())]]
        return self.run(command, node, environment, self._files(pod, it, secrets))

    def run(
        self, command: Sequence[str], node: Node, environment: Mapping[str, str], files: Mapping[str, Path]
    ) -> Process:
        """Starts a command of ours on a node; `files` has what lies where, beside the file of names."""
        words = ("ps-worker", TRAINER, str(self.folder)) if command[0] == "ps-worker" else command
        seen = {"/etc/hosts": self._hosts, **files}
        made = self._zygote.start(*words, environment={**environment, **self._entry(node, seen)})
        self._stack.callback(made.kill)
        return made

    def _entry(self, node: Node, files: Mapping[str, Path]) -> dict[str, str]:
        return {
            **node.environment,
            **self._limits,
            "TESTS_INSTALL": "tests.deploy.pod_entry,tests.faults.limits",
            pod_entry.FILES: json.dumps({target: str(source) for target, source in files.items()}),
        }

    def _files(self, pod: Pod, container: Object, given: Mapping[str, Path]) -> dict[str, Path]:
        """Where is what, but for emptyDirs: those are the machine's."""
        spec = pod.workload["spec"]["template"]["spec"]
        claims = {it["metadata"]["name"] for it in pod.workload["spec"].get("volumeClaimTemplates", ())}
        claims |= {it["name"] for it in spec["volumes"] if "persistentVolumeClaim" in it}
        held = pod.secrets()
        files: dict[str, Path] = {}
        for mount in container["volumeMounts"]:
            name, source = mount["name"], self.folder / "volumes" / pod.name / mount["name"]
            if name in given:
                source = given[name]
            elif name in held:
                source.mkdir(parents=True, exist_ok=True)
                for file, content in held[name].items():
                    (source / file).write_bytes(content)
            elif name in claims:
                source.mkdir(parents=True, exist_ok=True)
            else:
                continue
            files[mount["mountPath"]] = source
        return files


def refusal() -> str | None:
    """Why there are no such networks here; None: there are."""
    if reason := links.refusal():
        return reason
    tried = subprocess.run(
        [*links.UNSHARE, "sh", "-c", f"ip link add {BRIDGE} type bridge && mount -t tmpfs none /var/lib"],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=LIMIT_S,
        check=False,
    )
    return None if tried.returncode == 0 else f"no bridges between namespaces: {tried.stderr.strip()}"
