"""The page on the architecture has every folder of the packages, every lock and every thread of theirs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .pages import ROOT, table

PACKAGES = ("ps_wire", "ps_server", "ps_worker", "ps_lab")


def says(folder: Path) -> str:
    """The first line of its docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert text is not None, folder
    return text.splitlines()[0]


def test_every_folder_is_a_wing_of_the_table_with_what_it_says_of_itself():
    folders = [
        path.parent
        for package in PACKAGES
        for path in (ROOT / package).rglob("*/__init__.py")
        if path.parent.name != "v1"
    ]
    expected = {f"`{folder.relative_to(ROOT)}`": says(folder) for folder in folders}
    assert dict(table("docs/architecture.md", "wing", "owns")) == expected


def test_what_a_question_is_answered_with_stands_where_it_is_said_to():
    """`Cell.push` in `ps_server/.../cell.py`: the class is there, and the method of it."""
    answers = " ".join(dict(table("docs/architecture.md", "question", "read")).values())
    found = re.findall(r"`([A-Za-z_]+)(?:\.([a-z_]+))?` (?:of|in) `(ps_[\w/]+\.py)`", answers)
    assert len(found) > 10
    for name, method, path in found:
        text = (ROOT / path).read_text()
        assert re.search(rf"^(?:class |def |){name}\b", text, re.MULTILINE), (name, path)
        assert not method or f"    def {method}(" in text, (name, method, path)


THREADED = ("ps_wire", "ps_server", "ps_worker")  # packages whose tables of threads and locks are on the page
LOCK = re.compile(r"threading\.(R?Lock|Condition)\(")


def texts() -> Iterator[str]:
    """Of all modules of these packages."""
    return (path.read_text() for package in THREADED for path in sorted((ROOT / package).rglob("*.py")))


def locks_of(tree: ast.Module) -> Iterator[str]:
    """`Class.attribute` of each lock that objects have, and names of those of the module itself."""
    for holder in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in holder.body if isinstance(holder, ast.Module) else ast.walk(holder):
            if isinstance(node, ast.Assign | ast.AnnAssign) and LOCK.search(ast.unparse(node)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Attribute):
                        yield f"{holder.name}.{one.attr}"
                    elif isinstance(holder, ast.Module):
                        yield ast.unparse(one)


def test_every_lock_is_in_the_tables_and_the_tables_have_no_other():
    """An attribute that two threads touch is named there with its lock: a new one begins with its row."""
    found = {lock for text in texts() if LOCK.search(text) for lock in locks_of(ast.parse(text))}
    rows = [cells[0] for cells in table("docs/architecture.md", "lock", "guards")]
    named = {name for row in rows if not row.endswith("an event") for name in re.findall(r"`([\w.]+)`", row)}
    assert {name for name in named if not name.endswith(".py")} == found


def test_every_thread_is_in_the_tables():
    """By the name that it is started with; `ps-shard-K` is one per shard."""
    started = re.compile(r'watched\.(?:endless_)?thread\(\s*f?"([\w-]+)')
    found = {name for text in texts() for name in started.findall(text)}
    assert len(found) > 10
    rows = " ".join(cells[0] for cells in table("docs/architecture.md", "thread", "does"))
    assert {name for name in found if f"`{name}" not in rows} == set()
