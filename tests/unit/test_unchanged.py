"""What `python -m tests.unchanged` compares, and how it names a difference."""

from __future__ import annotations

import ast
from pathlib import Path

from ps_wire.frames import frame
from tests.unchanged import states, surfaces
from tests.unchanged.__main__ import differing
from tests.unchanged.tree import CURRENT, SCRIPTS


def test_what_differs_is_named_down_to_the_value():
    before = {"a": {"x": [1, 2]}, "b": 1, "c": 2}
    after = {"a": {"x": [1, 3]}, "b": 1, "d": 2}
    assert differing(before, before) == []
    assert differing(before, after) == [
        "a: x: [1]: 2 before, 3 after",
        "c: only before",
        "d: only after",
    ]


def test_frames_are_read_by_the_table_of_the_protocol():
    """Which the package's own frames fit."""
    made = [
        frame.Frame(kind=frame.Kind.HELLO, worker=3, meta=bytes(16) + b"job"),
        frame.Frame(kind=frame.Kind.PUSH, step=5, partition=7, weight=0.5, payload=b"12345678"),
    ]
    hello, push = surfaces.decoded(b"".join(map(frame.encode, made)))
    assert (hello["kind"], hello["worker"], hello["meta"]) == (surfaces.HELLO, 3, b"job".hex())
    assert (push["step"], push["partition"], push["weight"], push["payload_bytes"]) == (5, 7, 0.5, 8)


def test_a_shape_has_all_keys_and_no_values():
    value = {"jobs": [{"name": "a"}, {"name": "b", "clock": 3}], "mailboxes": [{"kept": 1}]}
    assert states.shape(value) == [
        ".jobs: list",
        ".jobs[].clock: int",
        ".jobs[].name: str",
        ".jobs[]: dict",
        ".mailboxes: list",
        ": dict",
    ]
    assert states.known(value | {"boot": "3f", "waited_s": 0.1}) == {"jobs": value["jobs"]}


def test_spans_are_found_with_their_arguments():
    names = dict(surfaces.names(CURRENT))
    assert names["span/stage"] == ["self, contribution"]
    assert "ps-data" in names["thread names"]


def test_scripts_import_nothing_that_is_not_public():
    """They run with any build: nothing of the packages but `ps_worker` itself."""
    beside = {path.stem for path in SCRIPTS.glob("*.py")}
    for path in SCRIPTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            ours = {name for name in modules if name.startswith(("ps_", "tests"))}
            assert ours <= {"ps_worker"}, f"{Path(path).name} imports {ours}"
    assert "digest" in beside
