"""Manifests and pieces of snapshots that somebody has tampered with, drawn from a seed.

A mutated manifest has the checksum of what it says: who brings one computes it like anybody else. So has a
piece: `described` gives a manifest the size and checksum of a file.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ps_wire.snapshot.manifest import FORMAT

Json = Any
Path = tuple[str | int, ...]

WHOLE = (
    -5,
    -1,
    0,
    1,
    2,
    65_535,
    100_000,
    5_000_000_000,
    1 << 31,
    1 << 40,
    1 << 53,
    1 << 64,
    1 << 70,
    10**300,
)
REAL = (-1.0, 0.5, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXT = (
    "",
    "0",
    "-5",
    "x",
    "x" * 5000,
    "\x1b[31m",
    "line\nline",
    "\ud800",
    "\u0663",
    "../../x",
    "NaN",
    "Infinity",
)
OTHER = (None, True, False, [], {}, [[]], [0], {"0": 0}, {"-5": 1}, [1] * 3000)
ODD = (*WHOLE, *REAL, *TEXT, *OTHER)
FIRST_PARTS = 40
KEYS = ("-5", "01", "+1", " 1", "1_0", "1099511627776", "5000000000", "100000", "x", "", "0", "1")


def signed(body: Json) -> bytes:
    """A manifest that says this, with its checksum."""
    body = json.loads(json.dumps(body))
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({"format": FORMAT, "sha256": digest, "manifest": body}).encode()


def body_of(manifest: bytes) -> Json:
    """What a manifest says."""
    return json.loads(manifest)["manifest"]


def described(body: Json, name: str, file: bytes) -> Json:
    """The same, with a file as it is now."""
    changed = copy.deepcopy(body)
    for record in changed["files"]:
        if record["name"] == name:
            record |= {"bytes": len(file), "sha256": hashlib.sha256(file).hexdigest()}
    return changed


def bodies(seed: int, body: Json, count: int) -> Iterator[Json]:
    """What `count` manifests say that were made of one, each with a few changes."""
    draw = random.Random(seed)
    for _ in range(count):
        yield _changed(draw, body, frozenset())


def manifests(seed: int, manifest: bytes, count: int) -> Iterator[bytes]:
    """As `bodies`, as files; one in eight is no JSON, or has another checksum."""
    draw = random.Random(seed)
    for body in bodies(seed, body_of(manifest), count):
        text = signed(body)
        yield draw.choice(_DAMAGE)(draw, text) if draw.random() < 0.125 else text


def pieces(seed: int, file: bytes, facts: str, count: int) -> Iterator[bytes]:
    """Safetensors files made of one; `facts` is the name of its facts in JSON."""
    draw = random.Random(seed)
    size = struct.unpack("<Q", file[:8])[0]
    header, data = json.loads(file[8 : 8 + size]), file[8 + size :]
    for _ in range(count):
        changed, own = copy.deepcopy(header), data
        how = draw.random()
        if how < 0.5:
            said = json.loads(header["__metadata__"][facts])
            changed["__metadata__"][facts] = json.dumps(_changed(draw, said, frozenset()))
        elif how < 0.7:
            changed = _changed(draw, header, frozenset({"__metadata__"}))
        elif how < 0.85:
            own = draw.choice((b"", data[:-1], data[: len(data) // 2], data + b"\0" * 64, bytes(len(data))))
        text = json.dumps(changed).encode()
        length = draw.choice(LENGTHS) if how >= 0.85 else len(text)
        yield struct.pack("<Q", length) + text + own


LENGTHS = (0, 1, 7, 8, 1 << 16, (1 << 27) - 1, 1 << 30, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def _changed(draw: random.Random, whole: Json, spared: frozenset[str]) -> Json:
    changed = copy.deepcopy(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        paths = [path for path in _paths(changed) if path and path[0] not in spared]
        if not paths:
            break
        *path, last = draw.choice(paths)
        owner = changed
        for step in path:
            owner = owner[step]
        draw.choice(_CHANGES)(draw, owner, last)
    return changed


def _paths(value: Json, path: Path = ()) -> list[Path]:
    """Of all values, but of a list or object that was made long only those of its first parts."""
    parts: Iterable[Any] = ()
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path]
    for key, part in itertools.islice(parts, FIRST_PARTS):
        found += _paths(part, (*path, key))
    return found


def _replace(draw: random.Random, owner: Any, key: Any) -> None:
    owner[key] = copy.deepcopy(draw.choice(ODD))


def _nudge(draw: random.Random, owner: Any, key: Any) -> None:
    value = owner[key]
    if isinstance(value, int | float) and not isinstance(value, bool):
        owner[key] = draw.choice((value + 1, value - 1, -value, value * 2, value * (1 << 40)))
    else:
        _replace(draw, owner, key)


def _remove(_draw: random.Random, owner: Any, key: Any) -> None:
    del owner[key]


def _rename(draw: random.Random, owner: Any, key: Any) -> None:
    if isinstance(owner, dict):
        owner[draw.choice(KEYS)] = owner.pop(key)
    else:
        owner.append(copy.deepcopy(owner[key]))


def _repeat(draw: random.Random, owner: Any, key: Any) -> None:
    value = copy.deepcopy(owner[key])
    if isinstance(owner, list):
        owner.extend(copy.deepcopy(value) for _ in range(draw.choice((1, 3, 70))))
    else:
        owner.update({str(number): value for number in draw.sample(range(100_000), 70)})


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _replace,
    _replace,
    _replace,
    _nudge,
    _remove,
    _rename,
    _repeat,
)


def _cut(draw: random.Random, text: bytes) -> bytes:
    return text[: draw.randrange(len(text))]


def _flip(draw: random.Random, text: bytes) -> bytes:
    place = draw.randrange(len(text))
    return text[:place] + bytes([text[place] ^ (1 << draw.randrange(8))]) + text[place + 1 :]


def _deep(draw: random.Random, _text: bytes) -> bytes:
    depth = draw.choice((100, 1000, 100_000))
    return b'{"format": 2, "sha256": "", "manifest": ' + b"[" * depth + b"]" * depth + b"}"


_DAMAGE: tuple[Callable[[random.Random, bytes], bytes], ...] = (_cut, _flip, _deep)
