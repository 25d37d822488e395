"""Records what must not change with a change of the code's form, and compares two records.

python -m tests.unchanged --out FILE [--tree TREE]   records a build: this one, or another tree's
python -m tests.unchanged --compare FILE FILE        says what differs, by name; ends with 1 if anything does
python -m tests.unchanged --across TREE              runs jobs with processes of both builds
python -m tests.unchanged --before COMMIT            all of it, against a commit: `make unchanged`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unchanged import across, surfaces, training
from tests.unchanged.tree import CURRENT, Tree, checked_out


def record(tree: Tree) -> dict[str, Any]:
    """All that is recorded of a build."""
    with tempfile.TemporaryDirectory() as name:
        return dict(_parts(tree, Path(name)))


def _parts(tree: Tree, folder: Path) -> Iterator[tuple[str, Any]]:
    yield from surfaces.names(tree)
    yield from surfaces.pages(tree)
    yield from surfaces.help_texts(tree)
    yield from surfaces.frames(tree)
    yield from surfaces.snapshot(tree, folder)
    yield from training.in_order(tree, folder)
    yield from training.matrix(tree, folder)


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what differs, with the first of it."""
    absent = object()
    found = []
    for name in sorted(before.keys() | after.keys()):
        one, two = before.get(name, absent), after.get(name, absent)
        if one is absent or two is absent:
            found.append(f"{name}: only {'after' if one is absent else 'before'}")
        elif one != two:
            found.append(f"{name}: {_first(one, two)}")
    return found


def _first(one: Any, two: Any) -> str:
    """Where two values begin to differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            if one.get(key) != two.get(key):
                return f"{key}: {_first(one.get(key), two.get(key))}"
    if isinstance(one, list) and isinstance(two, list):
        for index, (here, there) in enumerate(zip(one, two, strict=False)):
            if here != there:
                return f"[{index}]: {_first(here, there)}"
        return f"{len(one)} entries before, {len(two)} after"
    return f"{one!r} before, {two!r} after"


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Says what differs; how many names do."""
    found = differing(before, after)
    for line in found:
        print(line)
    print(f"{len(before)} records before, {len(after)} after, {len(found)} differ")
    return len(found)


def mixed(before: Tree) -> int:
    """Runs jobs of both builds, and says what differs; how many names do."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for way, expected, found in across.differences(before, CURRENT, Path(name)):
            print(f"{way}:")
            failed += compare(expected, found)
    return failed


def against(commit: str, out: Path | None) -> int:
    """Everything, against the build of a commit."""
    with tempfile.TemporaryDirectory() as folder, checked_out(commit, Path(folder)) as before:
        one, two = record(before), record(CURRENT)
        if out is not None:
            out.write_text(json.dumps({"before": one, "after": two}, indent=1, sort_keys=True))
        return compare(one, two) + mixed(before)


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.unchanged", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where the record goes")
    parser.add_argument("--tree", type=Path, default=CURRENT.path, help="whose build is recorded")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--across", type=Path, metavar="TREE", help="of the build before")
    parser.add_argument("--before", metavar="COMMIT", help="the build that this one is compared with")
    asked = parser.parse_args()
    if asked.compare:
        one, two = (json.loads(path.read_text()) for path in asked.compare)
        return bool(compare(one, two))
    if asked.across:
        return bool(mixed(Tree(asked.across.resolve())))
    if asked.before:
        return bool(against(asked.before, asked.out))
    if not asked.out:
        parser.error("one of --out, --compare, --across and --before is needed")
    found = record(Tree(asked.tree.resolve()))
    asked.out.write_text(json.dumps(found, indent=1, sort_keys=True))
    print(f"{len(found)} records in {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
