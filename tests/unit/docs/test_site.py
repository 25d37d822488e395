"""The site of the pages, without building it (`make docs` does): its navigation, the anchors of its links."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .pages import PAGES, ROOT, name_of, prose

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def outside() -> dict[str, str]:
    """Pages outside docs/, as the hook has them: path in the repository -> path in the site."""
    tree = ast.parse((ROOT / "docs" / "site_hooks.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OUTSIDE":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise AssertionError("the hook has no OUTSIDE")


def named(entry: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from named(part)


def test_the_navigation_names_every_page_once() -> None:
    """But for single decisions, which their own list names."""
    decisions = {name_of(page) for page in (ROOT / "docs" / "adr").glob("0*.md")}
    pages = {name_of(page) for page in PAGES} - decisions
    uris = [outside().get(page, page.removeprefix("docs/")) for page in pages]
    assert sorted(named(CONFIG["nav"])) == sorted(uris)
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert {page for page in decisions if f"({Path(page).name})" not in listed} == set()


def test_nothing_is_fetched_from_elsewhere() -> None:
    """Fonts are the reader's, the search is in the site; `make docs` looks at the pages that come out."""
    assert CONFIG["theme"]["font"] is False
    assert CONFIG["plugins"] == ["search"]
    assert CONFIG["strict"]
    assert not any("```mermaid" in page.read_text() for page in PAGES)  # its script would be


def slugs(page: Path) -> tuple[set[str], set[str]]:
    """The anchors of a page's headings, as mkdocs makes them and as GitHub does."""
    of_mkdocs, of_github = set(), set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip()
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        of_mkdocs.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
        of_github.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
    return of_mkdocs, of_github


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_a_heading(page: Path) -> None:
    """On the site and on GitHub alike."""
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        there = page if not path else (page.parent / path).resolve()
        if "://" not in target and there.suffix == ".md":
            assert all(anchor in known for known in slugs(there)), target
