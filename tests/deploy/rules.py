"""Rules for manifests, beside the Kubernetes schemas: each gives what is wrong, a line for each fault.

An API server refuses most of it, and the schemas see none of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

import typer

from ps_server import cli as server_cli
from ps_wire.spec.address import parse_servers
from ps_worker import cli as worker_cli

from .manifests import Object, Pod, containers, of_kind, pods, workloads

PACKAGE = "torch-parameter-server"
# Variables without an option, of workers; of both there is PS_TRACE.
WORKERS = {"PS_RECORD", "PS_STRAGGLER", "PS_CONNECT_LIMIT", "PS_START_LIMIT", "PS_RETRY_LIMIT", "PS_WAIT"}
VARIABLES = {
    "control": "PS_PORT",
    "data": "PS_DATA_PORT",
    "health": "PS_HEALTH_PORT",
    "metrics": "PS_METRICS_PORT",
}
COMMANDS = {"ps-server": server_cli.app, "ps-worker": worker_cli.app}
UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([a-zA-Z]*)")


def quantity(text: object) -> float | None:
    """A quantity of Kubernetes as a number; None: it is none."""
    match = _QUANTITY.fullmatch(str(text))
    return None if match is None or match[2] not in UNITS else float(match[1]) * UNITS[match[2]]


def variables(command: str) -> set[str]:
    """The PS_* variables that a command reads."""
    options = typer.main.get_command(COMMANDS[command]).params
    named = {str(option.envvar) for option in options if option.envvar}
    return named | {"PS_TRACE"} | (WORKERS if command == "ps-worker" else set())


def security(objects: Sequence[Object]) -> Iterator[str]:
    """Pods of the Pod Security level `restricted`, and a root file system that nobody writes to."""
    for workload in workloads(objects):
        spec, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        pod = spec.get("securityContext", {})
        if not pod.get("runAsNonRoot") or not pod.get("runAsUser"):
            yield f"{name}: its pods may run as root"
        if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name}: no seccompProfile RuntimeDefault"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name}: its pods get a token of the Kubernetes API"
        if spec.get("enableServiceLinks") is not False:
            yield f"{name}: Kubernetes sets PS_SERVER_PORT and the like (enableServiceLinks)"
        for it in containers(workload):
            own = it.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False:
                yield f"{name}/{it['name']}: allowPrivilegeEscalation"
            if own.get("readOnlyRootFilesystem") is not True:
                yield f"{name}/{it['name']}: its root file system can be written to"
            if own.get("capabilities", {}).get("drop") != ["ALL"]:
                yield f"{name}/{it['name']}: has capabilities"


def resources(objects: Sequence[Object]) -> Iterator[str]:
    """Requests are limits, and are quantities; claims of one pod are of one pod alone."""
    for workload in workloads(objects):
        for it in containers(workload):
            where = f"{workload['metadata']['name']}/{it['name']}"
            asked, limits = it["resources"]["requests"], it["resources"]["limits"]
            for name, text in [*asked.items(), *limits.items()]:
                if quantity(text) is None:
                    yield f"{where}: {text} is no quantity ({name})"
            if any(limits.get(name) != text for name, text in asked.items()):
                yield f"{where}: requests are not its limits: it may be evicted, or slowed down"
        for claim in workload["spec"].get("volumeClaimTemplates", ()):
            modes = claim["spec"]["accessModes"]
            if "ReadWriteOncePod" in modes and len(modes) > 1:
                yield f"{claim['metadata']['name']}: ReadWriteOncePod beside another mode"


def volumes(objects: Sequence[Object]) -> Iterator[str]:
    """What is mounted is there, and what is there is mounted."""
    for workload in workloads(objects):
        name = workload["metadata"]["name"]
        known = {it["name"] for it in workload["spec"]["template"]["spec"].get("volumes", ())}
        known |= {it["metadata"]["name"] for it in workload["spec"].get("volumeClaimTemplates", ())}
        mounted = {mount["name"] for it in containers(workload) for mount in it.get("volumeMounts", ())}
        for missing in sorted(mounted - known):
            yield f"{name}: no volume {missing}, which is mounted"
        for unused in sorted(known - mounted):
            yield f"{name}: nobody mounts the volume {unused}"
        for it in containers(workload):
            if "/tmp" not in {mount["mountPath"] for mount in it.get("volumeMounts", ())}:
                yield f"{name}/{it['name']}: nothing can be written to /tmp"


def references(objects: Sequence[Object]) -> Iterator[str]:
    """ConfigMaps, Secrets, claims and accounts are there, and Services and selectors find their pods."""
    names = {(it["kind"], it["metadata"]["name"]) for it in objects}
    made = {it["spec"]["secretName"] for it in of_kind(objects, "Certificate")}
    for workload in workloads(objects):
        spec, name = workload["spec"]["template"]["spec"], workload["metadata"]["name"]
        wanted = {
            ("ConfigMap", it["configMapRef"]["name"])
            for c in containers(workload)
            for it in c.get("envFrom", ())
        }
        for volume in spec.get("volumes", ()):
            if "secret" in volume and volume["secret"]["secretName"] not in made:
                wanted.add(("Secret", volume["secret"]["secretName"]))
            if "persistentVolumeClaim" in volume:
                wanted.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
        if "serviceAccountName" in spec:
            wanted.add(("ServiceAccount", spec["serviceAccountName"]))
        for kind, missing in sorted(wanted - names):
            yield f"{name}: there is no {kind} {missing}"
    labels = [workload["spec"]["template"]["metadata"]["labels"] for workload in workloads(objects)]
    for it in of_kind(objects, "Service", "PodDisruptionBudget", "NetworkPolicy", "StatefulSet"):
        found = it["spec"].get("podSelector", it["spec"].get("selector"))
        wanted_labels = found.get("matchLabels", found)
        if not any(wanted_labels.items() <= own.items() for own in labels):
            yield f"{it['kind']} {it['metadata']['name']}: it selects no pod"


def listening(objects: Sequence[Object]) -> Iterator[str]:
    """Containers listen on the ports that they say, and probes ask one of them."""
    for workload in workloads(objects):
        for it in containers(workload):
            where = f"{workload['metadata']['name']}/{it['name']}"
            own = {port["name"]: port["containerPort"] for port in it.get("ports", ())}
            for name in own:
                if len(name) > 15:
                    yield f"{where}: a port's name has at most 15 characters: {name}"
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = it.get(probe, {}).get("grpc", {}).get("port")
                if port is not None and port not in own.values():
                    yield f"{where}: {probe} asks port {port}, which it does not have"
            said = {entry["name"]: entry.get("value") for entry in it.get("env", ())}
            for name, variable in VARIABLES.items():
                if name in own and said.get(variable) != str(own[name]):
                    yield f"{where}: port {name} is {own[name]}, and {variable} is {said.get(variable)}"


def ports(objects: Sequence[Object]) -> Iterator[str]:
    """Ports of Services and policies are those of the pods that they select."""
    for it in of_kind(objects, "Service", "NetworkPolicy"):
        spec = it["spec"]
        selected = [
            workload
            for workload in workloads(objects)
            if spec.get("podSelector", {}).get("matchLabels", spec.get("selector", {})).items()
            <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]
        known = {
            port["name"] for workload in selected for c in containers(workload) for port in c.get("ports", ())
        }
        used = [port["targetPort"] for port in spec.get("ports", ())]
        used += [port["port"] for rule in spec.get("ingress", ()) for port in rule.get("ports", ())]
        for port in used:
            if port not in known:
                yield f"{it['kind']} {it['metadata']['name']}: no pod that it selects has a port {port}"


def services(objects: Sequence[Object]) -> Iterator[str]:
    """Pods of a StatefulSet have names by a headless Service, also before they are ready."""
    found = {it["metadata"]["name"]: it["spec"] for it in of_kind(objects, "Service")}
    for it in of_kind(objects, "StatefulSet"):
        spec = found.get(it["spec"]["serviceName"], {})
        if spec.get("clusterIP") != "None":
            yield f"{it['metadata']['name']}: its Service {it['spec']['serviceName']} is not headless"
        elif not spec.get("publishNotReadyAddresses"):
            yield f"{it['metadata']['name']}: shards that are not ready have no name"


def jobs(objects: Sequence[Object]) -> Iterator[str]:
    """A Job with rules for failures has what these need."""
    for job in of_kind(objects, "Job"):
        spec, name = job["spec"], job["metadata"]["name"]
        rules = spec.get("podFailurePolicy", {}).get("rules", ())
        if not rules:
            continue
        if spec["template"]["spec"].get("restartPolicy") != "Never":
            yield f"{name}: podFailurePolicy needs restartPolicy Never"
        if spec.get("podReplacementPolicy") != "Failed":
            yield f"{name}: podReplacementPolicy: two pods of one worker run at a time"
        if rules[0]["action"] != "Ignore" or not rules[0].get("onPodConditions"):
            yield f"{name}: the first rule is to ignore evictions"
        for rule in rules:
            if rule["action"] == "FailJob":
                yield f"{name}: FailJob ends workers that are well"
            named = rule.get("onExitCodes", {}).get("containerName")
            if named is not None and named not in {it["name"] for it in containers(job)}:
                yield f"{name}: a rule names container {named}, which it does not have"


def exit_codes(objects: Sequence[Object]) -> Iterator[str]:
    """A worker is started again where that helps: by the exit codes of docs/reference.md."""
    for job in of_kind(objects, "Job"):
        spec, name = job["spec"], job["metadata"]["name"]
        rules = spec.get("podFailurePolicy", {}).get("rules", ())
        if not rules:
            continue
        codes = {
            code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())
        }
        for code in (64, 65, 78):
            if codes.get(code) != "FailIndex":
                yield f"{name}: a worker that ends with {code} is started again, which does not help"
        for code in (69, 75):
            if code in codes:
                yield f"{name}: a worker that ends with {code} is to be started again"
        if 0 in codes:
            yield f"{name}: 0 is no failure"
        if "FailIndex" in codes.values() and "backoffLimitPerIndex" not in spec:
            yield f"{name}: FailIndex needs backoffLimitPerIndex"
        if spec.get("completionMode") != "Indexed":
            yield f"{name}: workers have no numbers (completionMode: Indexed)"


def successors(objects: Sequence[Object]) -> Iterator[str]:
    """A server of a Job that was stopped is not done; a sidecar starts again whatever it ends with."""
    for job in of_kind(objects, "Job"):
        for it in job["spec"]["template"]["spec"]["containers"]:
            said = {entry["name"]: entry.get("value") for entry in it.get("env", ())}
            if it["command"] == ["ps-server"] and said.get("PS_STOPPED_CODE", "0") == "0":
                yield f"{it['name']}: stopped, it ends with 0, and gets no successor (PS_STOPPED_CODE)"


def counts(objects: Sequence[Object]) -> Iterator[str]:
    """How many servers and workers there are is said alike everywhere."""
    said: dict[str, set[int]] = {"servers": set(), "workers": set()}
    for workload in workloads(objects):
        spec = workload["spec"]
        for it in containers(workload):
            pod = Pod(objects=tuple(objects), workload=workload, index=0)
            environment = pod.environment(it)
            many = spec.get("replicas", spec.get("completions"))
            if spec.get("parallelism", many) != many:
                yield f"{workload['metadata']['name']}: all workers run at once: parallelism is completions"
            one_pod = len(spec["template"]["spec"]["containers"]) > 1
            role = "servers" if it["command"][0] == "ps-server" else "workers"
            if "PS_SHARD" in environment:
                said["servers"].add(int(environment["PS_SHARD"].partition("/")[2]))
            if "PS_SERVERS" in environment:
                said["servers"].add(len(parse_servers(environment["PS_SERVERS"])))
            if "PS_NUM_WORKERS" in environment:
                said["workers"].add(int(environment["PS_NUM_WORKERS"]))
            if one_pod:
                many = sum(c["command"][0] == it["command"][0] for c in containers(workload))
            said[role].add(many)
    for role, numbers in said.items():
        if len(numbers) != 1:
            yield f"{role}: {' and '.join(map(str, sorted(numbers)))}"


def known_variables(objects: Sequence[Object]) -> Iterator[str]:
    """Each PS_* variable is one that the command reads, and `$(NAME)` stands for something."""
    for pod in pods(tuple(objects)):
        for it in containers(pod.workload):
            for name, value in pod.environment(it).items():
                if name.startswith("PS_") and name not in variables(it["command"][0]):
                    yield f"{pod.name}/{it['name']}: {it['command'][0]} knows no {name}"
                if "$(" in value:
                    yield f"{pod.name}/{it['name']}: {name}: nothing stands for {value}"


def images(objects: Sequence[Object]) -> Iterator[str]:
    """One image, of this release."""
    for workload in workloads(objects):
        for it in containers(workload):
            if not re.fullmatch(rf"{PACKAGE}:{re.escape(version(PACKAGE))}(-cuda)?", it["image"]):
                yield f"{workload['metadata']['name']}/{it['name']}: image {it['image']}"


def identities(objects: Sequence[Object]) -> Iterator[str]:
    """No two pods are one shard or one worker, and others reach shards under the name that they say."""
    seen: dict[tuple[str, str], str] = {}
    listed: list[str] = []
    for pod in pods(tuple(objects)):
        for it in containers(pod.workload):
            environment = pod.environment(it)
            for name in ("PS_SHARD", "PS_WORKER"):
                if name in environment and seen.setdefault((name, environment[name]), pod.name) != pod.name:
                    other = seen[name, environment[name]]
                    yield f"{pod.name} and {other} both have {name}={environment[name]}"
            listed = [*parse_servers(environment["PS_SERVERS"])] if "PS_SERVERS" in environment else listed
    for pod in pods(tuple(objects)):
        for it in containers(pod.workload):
            environment = pod.environment(it)
            if "PS_ADVERTISE" in environment:
                reached = f"{environment['PS_ADVERTISE']}:{environment['PS_PORT']}"
                if listed and reached not in listed:
                    yield f"{pod.name}: says that it is {reached}, which PS_SERVERS does not list"


def certificates(objects: Sequence[Object]) -> Iterator[str]:
    """The servers' certificate has each name in PS_SERVERS, and none that gRPC does not take."""
    found = [it for it in of_kind(objects, "Certificate") if it["metadata"]["name"] == "ps-server"]
    for it in found:
        names = it["spec"]["dnsNames"]
        for name in names:
            if name.startswith("*.") and "." not in name[2:]:
                yield f"certificate {it['metadata']['name']}: gRPC takes no {name}"
        for config in of_kind(objects, "ConfigMap"):
            for address in parse_servers(config["data"].get("PS_SERVERS", "none:1")):
                host = address.rpartition(":")[0]
                if host != "none" and host not in names:
                    yield f"certificate {it['metadata']['name']}: it is not for {host}"


RULES: dict[str, Callable[[Sequence[Object]], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        security,
        resources,
        volumes,
        references,
        listening,
        ports,
        services,
        jobs,
        exit_codes,
        successors,
        counts,
        known_variables,
        images,
        identities,
        certificates,
    )
}
