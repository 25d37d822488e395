"""`docs/status.md` has each key of `ps-lab status --json`, with its type, and no other."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from ps_lab.status.status import Job, Shard, Status, Table, TableWorker, Worker
from ps_wire.spec.staleness import Staleness
from tests.unit.ps_lab.made import made_job, made_status, made_table, made_table_worker, made_worker

from .pages import table

NAMES = {str: "text", int: "integer", float: "number", bool: "boolean"}
ADDED = {Table: {"tau": Staleness}, TableWorker: {"gap": int}}  # by `Status.to_json`


def rows_of(cls: type, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, type) of each key of an object, depth first."""
    hints = get_type_hints(cls) | ADDED.get(cls, {})
    for name in [*(field.name for field in fields(cls)), *ADDED.get(cls, {})]:
        yield from _rows(hints[name], f"{path}{name}")


def _rows(hint: Any, path: str) -> Iterator[tuple[str, str]]:
    if get_origin(hint) in (types.UnionType, Union):
        (hint,) = [it for it in get_args(hint) if it is not type(None)]
        rows = list(_rows(hint, path))
        yield rows[0][0], f"{rows[0][1]} or null"
        yield from rows[1:]
    elif get_origin(hint) is tuple:
        yield path, "list"
        item = get_args(hint)[0]
        if is_dataclass(item):
            yield from rows_of(item, f"{path}[].")
        else:
            yield f"{path}[]", NAMES[item]
    elif get_origin(hint) is Mapping:
        _, value = get_args(hint)
        yield path, f"object of {NAMES[value]}s"
    elif is_dataclass(hint):
        yield path, "object"
        yield from rows_of(hint, f"{path}.")
    else:
        yield path, NAMES[hint]


def test_the_page_has_each_key_with_its_type():
    rows = [(row[0].strip("`"), row[1]) for row in table("docs/status.md", "key", "type")]
    assert rows == list(rows_of(Status))


def test_each_key_has_a_meaning():
    assert all(row[2] for row in table("docs/status.md", "key", "type"))


def test_what_is_printed_has_these_keys():
    """As `to_json` gives them, down to the workers of a table."""
    worker = made_table_worker(0)
    job = made_job(workers=(made_worker(0),), tables=(made_table(workers=(worker,)),))
    data = made_status(job).to_json()
    for cls, found in (
        (Status, data),
        (Shard, data["shards"][0]),
        (Job, data["jobs"][0]),
        (Worker, data["jobs"][0]["workers"][0]),
        (Table, data["jobs"][0]["tables"][0]),
        (TableWorker, data["jobs"][0]["tables"][0]["workers"][0]),
    ):
        assert list(found) == [field.name for field in fields(cls)] + list(ADDED.get(cls, {}))
