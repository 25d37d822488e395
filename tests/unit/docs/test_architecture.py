"""The page on the architecture has every folder of the packages, as that folder says of itself."""

import ast
import re
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
