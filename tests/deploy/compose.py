"""The compose file: its services as containers, and what is wrong with it.

`faults` sees what `docker compose` would refuse of the keys that are used here, and what it takes and what
then does not work: a name that nobody has, a variable that the command does not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from ps_wire.spec.address import parse_servers

from .manifests import DEPLOY, Object
from .rules import variables

FILE = DEPLOY / "compose" / "compose.yaml"
# The keys of the Compose specification that are used, with what they hold. The key `name` of the whole is not
# among them: docker-compose of Debian 12 refuses it.
WHOLE: dict[str, type] = {"services": dict, "volumes": dict, "secrets": dict}
SERVICE: dict[str, type] = {
    "image": str,
    "read_only": bool,
    "cap_drop": list,
    "security_opt": list,
    "tmpfs": list,
    "secrets": list,
    "restart": str,
    "command": list,
    "depends_on": list,
    "stop_grace_period": str,
    "environment": dict,
    "volumes": list,
    "healthcheck": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A container that the file describes.

    Attributes:
        command: in place of the image's.
        environment: that the file adds to the image's.
        volumes: from the place in the container to the name of the volume.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    volumes: dict[str, str]


def load() -> Object:
    """The file, with its anchors and merges resolved."""
    loaded: Object = yaml.safe_load(FILE.read_text())
    return loaded


def read() -> dict[str, Service]:
    """Its services, by name."""
    return {
        name: Service(
            command=tuple(it["command"]),
            environment=dict(it["environment"]),
            volumes={target: volume for volume, _, target in _mounts(it)},
        )
        for name, it in load()["services"].items()
    }


def _mounts(service: Object) -> Iterator[tuple[str, str, str]]:
    return (entry.partition(":") for entry in service.get("volumes", ()))


def faults(loaded: Object) -> Iterator[str]:
    """A line for each thing that is wrong."""
    for key, value in loaded.items():
        if not key.startswith("x-") and not isinstance(value, WHOLE.get(key, ())):
            yield f"{key}: not a key, or not of this kind"
    for name, it in loaded["services"].items():
        for key, value in it.items():
            if not isinstance(value, SERVICE.get(key, ())):
                yield f"{name}: {key}: not a key, or not of this kind"
        yield from (f"{name}: {fault}" for fault in _service(it, loaded))
    used = {volume for it in loaded["services"].values() for volume, _, _ in _mounts(it)}
    yield from (f"volume {name}: nobody has it" for name in sorted(loaded["volumes"].keys() - used))


def _service(it: Object, loaded: Object) -> Iterator[str]:
    if not it.get("read_only") or it.get("cap_drop") != ["ALL"]:
        yield "its root file system is writable, or it has capabilities"
    for volume, _, target in _mounts(it):
        if volume not in loaded["volumes"]:
            yield f"no volume {volume}"
        if not target.startswith("/"):
            yield f"volume {volume}: {target!r} is no place"
    for secret in it.get("secrets", ()):
        if secret not in loaded["secrets"]:
            yield f"no secret {secret}"
    servers = [name for name, other in loaded["services"].items() if other["command"][0] == "ps-server"]
    if it["command"][0] == "ps-worker" and it.get("depends_on") != servers:
        yield f"it is to be stopped before {' and '.join(servers)}: depends_on"
    yield from _environment(it)
    yield from (f"no service {host}" for host in _hosts(it["environment"]) if host not in loaded["services"])


def _environment(it: Object) -> Iterator[str]:
    for name, value in it["environment"].items():
        if not isinstance(value, str):  # true would be refused, and a number come as YAML writes it
            yield f"{name}: {value!r} is no text"
        if name.startswith("PS_") and name not in variables(it["command"][0]):
            yield f"{it['command'][0]} knows no {name}"
    file = it["environment"].get("PS_TOKEN_FILE", "")
    if file.removeprefix("/run/secrets/") not in it.get("secrets", ()):
        yield f"PS_TOKEN_FILE: {file!r} is no secret of its"


def _hosts(environment: dict[str, str]) -> list[str]:
    servers = parse_servers(environment["PS_SERVERS"]) if "PS_SERVERS" in environment else ()
    names = [environment[key] for key in ("PS_COORDINATOR", "PS_ADVERTISE") if key in environment]
    return [name.partition(":")[0] for name in (*servers, *names)]
