"""Hooks of mkdocs: brings into the site what lies outside `docs/`, with links that lead there.

README.md is the first page; other pages and files of the repository that a page links to become pages of
their own. Marks of our code blocks, such as `python run`, are taken off: mkdocs knows languages alone.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
# Pages outside docs/: path in the repository -> path in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/README.md": "deploy.md",
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", ".sbatch": "bash"}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(```\w+) [^\n]*$", re.MULTILINE)
_FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages outside docs/, and a page for each file that some page links to."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= {path for path in map(_path_of, _targets(file.content_string, file.src_uri)) if path}
    for path in sorted(path for path in linked if _uri_of(path).startswith("source/")):
        language = LANGUAGES.get(Path(path).suffix, "")
        text = f"# {path}\n\n````{language}\n{(ROOT / path).read_text()}\n````\n"
        files.append(File.generated(config, _uri_of(path), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Points links to where their targets are in the site."""
    here = page.file.src_uri

    def pointed(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        if not path or "://" in path or here.startswith("source/"):
            return match[0]
        uri = _uri_of(_resolved(path, here))
        return f"{match[1]}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{mark}{anchor}{match[3]}"

    parts = re.split(f"({_BLOCK.pattern})", markdown, flags=_BLOCK.flags)
    prose = [part if number % 2 else _LINK.sub(pointed, part) for number, part in enumerate(parts)]
    return _FENCE.sub(r"\1", "".join(prose))


def on_post_build(*, config: Any) -> None:
    """Ends the build where a page has the browser fetch something from elsewhere."""
    for page in Path(config["site_dir"]).rglob("*.html"):
        found = _FETCHED.search(page.read_text())
        if found is not None:
            raise PluginError(f"{page}: {found[0]} is fetched from elsewhere")


def _targets(markdown: str, uri: str) -> list[str]:
    """Paths in the repository that a page links to."""
    found = [match[2].partition("#")[0] for match in _LINK.finditer(_BLOCK.sub("", markdown))]
    return [_resolved(path, uri) for path in found if path and "://" not in path]


def _resolved(path: str, uri: str) -> str:
    """A link's path from the root of the repository; `uri` is the page that has it."""
    source = next((it for it, its_uri in OUTSIDE.items() if its_uri == uri), DOCS + uri)
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def _path_of(path: str) -> str:
    """The path of a file that becomes a page; empty where there is one already, or it is a folder."""
    return path if (ROOT / path).is_file() and not path.startswith(DOCS) and path not in OUTSIDE else ""


def _uri_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return f"source/{path}.md"
