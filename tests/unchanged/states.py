"""What files of a build hold: hand-offs and manifests of snapshots, by their keys.

Read as bytes, by the formats that `docs/protocol.md` states; no module of the project is asked.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Facts of processes, drawn or measured: their values differ from run to run, their keys do not.
DRAWN = {"boot", "session", "opening", "pid", "host", "sha256", "created"}
# Rows and messages as bytes, in which a `boot` or an `opening` stands.
ENCODED = {"choices", "done", "standings"}
# What members have not heard yet, or have said last: heartbeats, which come when they come.
UNHEARD = {"mailboxes", "stands", "happened"}

BYTES = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}  # of an element


def safetensors(file: Path) -> tuple[dict[str, Any], dict[str, str], bytes]:
    """Tensors as the header describes them, the texts beside them, and all bytes behind the header."""
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + size])
    texts = header.pop("__metadata__", {})
    return header, texts, raw[8 + size :]


def hand_off(file: Path) -> Iterator[tuple[str, Any]]:
    """Its keys with the types of values, its tensors' bytes as hashes."""
    tensors, texts, data = safetensors(file)
    if "index" in tensors:  # from format 4 on: see `ps_server/shard/hand_off_file.py`
        tensors, texts, data = _packed(tensors, data)
    for name, about in sorted(tensors.items()):
        begin, end = about["data_offsets"]
        value = {"dtype": about["dtype"], "shape": about["shape"], "bytes": end - begin}
        if not name.startswith("more/"):  # blobs of scripts, which have times in them
            value["sha256"] = hashlib.sha256(data[begin:end]).hexdigest()
        yield f"tensor {name}", value
    for name, text in sorted(texts.items()):
        yield f"keys {name}", shape(json.loads(text))
        yield f"values {name}", known(json.loads(text))


def _packed(tensors: dict[str, Any], data: bytes) -> tuple[dict[str, Any], dict[str, str], bytes]:
    """The same of a file whose names and facts stand in a tensor."""
    (_, end), (begin, _) = (tensors[name]["data_offsets"] for name in ("index", "data"))
    index = json.loads(data[:end])
    found = {}
    for name, (dtype, shape_of, at) in index["tensors"].items():
        nbytes = BYTES[dtype] * math.prod(shape_of)
        found[name] = {"dtype": dtype, "shape": shape_of, "data_offsets": [at, at + nbytes]}
    return found, {"hand-off": json.dumps(index["facts"])}, data[begin:]


def shape(value: Any, path: str = "") -> list[str]:
    """Paths of keys, each with the type of its values; those of all elements of a list are one."""
    if isinstance(value, dict):
        inside = [(f"{path}.{key}", it) for key, it in value.items()]
    elif isinstance(value, list):
        inside = [(f"{path}[]", it) for it in value]
    else:
        return [f"{path}: {type(value).__name__}"]
    own = [f"{path}: {type(value).__name__}"]
    unheard = path.rpartition(".")[2] in UNHEARD
    return own if unheard else sorted({line for name, it in inside for line in shape(it, name)} | set(own))


def known(value: Any) -> Any:
    """The same without what is drawn or measured: all that a second run repeats."""
    if isinstance(value, dict):
        return {key: known(it) for key, it in sorted(value.items()) if not _is_drawn(key)}
    if isinstance(value, list):
        return [known(it) for it in value]
    return value


def _is_drawn(key: str) -> bool:
    return key in DRAWN | ENCODED | UNHEARD or key.endswith("_s")
