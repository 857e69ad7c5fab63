"""MkDocs hook: what pages link to outside ``docs/`` becomes part of the site, under ``source/``.

Links work in a checkout and in the site alike: a Markdown file becomes a page, any other file a page with its text, and
a folder its README or a page with its files. What is no text stays the file that it is.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = "source"
#: Pages of the site that none of its pages has to link to.
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that others lead to."""
    from mkdocs.structure.files import File

    waiting = [(ROOT / name, "") for name in ALWAYS]
    waiting += [link for file in files.documentation_pages() for link in _links(Path(file.abs_src_path or ""))]
    while waiting:
        target, where = waiting.pop()
        uri = _uri(target)
        if target.is_relative_to(DOCS) or files.get_file_from_path(uri) is not None:
            continue
        if not target.exists():
            raise FileNotFoundError(f"{where} links to {target.relative_to(ROOT)}, which does not exist")
        if uri.endswith(".md"):
            files.append(File.generated(config, uri, content=_content(target)))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(target)))
        waiting += _listed(target) if _readme(target).is_dir() else _links(_readme(target))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to where their targets are in the site."""
    here = page.file.src_uri
    if page.file.generated_by is not None and not here.startswith(f"{FOLDER}/"):
        return markdown
    origin = ROOT / here.removeprefix(f"{FOLDER}/") if here.startswith(f"{FOLDER}/") else DOCS / here

    def moved(found: re.Match[str]) -> str:
        uri = _uri((origin.parent / found[0]).resolve())
        return posixpath.relpath(uri, posixpath.dirname(here) or ".")

    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in _FENCED.split(markdown))


def _readme(target: Path) -> Path:
    return target / "README.md" if (target / "README.md").exists() else target


def _uri(target: Path) -> str:
    """Return the path in the site's sources of a file or folder of the repository."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    target = _readme(target)
    path = f"{FOLDER}/{target.relative_to(ROOT).as_posix()}"
    if target.is_dir():
        return f"{path}/index.md"
    return path if target.suffix == ".md" or _is_binary(target) else f"{path}.md"


def _is_binary(target: Path) -> bool:
    return target.is_file() and b"\0" in target.read_bytes()[:8192]


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield what a page links to, with the page's name."""
    if page.suffix == ".md" and page.exists():
        for part in _FENCED.split(page.read_text(encoding="utf-8")):
            if not part.startswith("```"):
                for link in _LINK.findall(part):
                    yield (page.parent / link).resolve(), page.name


def _listed(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield what a page about a folder lists, with the folder's name."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(("_", ".")):
            yield path, folder.name


def _content(target: Path) -> str:
    target = _readme(target)
    if target.suffix == ".md":
        return target.read_text(encoding="utf-8")
    title = f"{_HIDDEN}# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        return title + "".join(f"- [{path.name}]({path.name})\n" for path, _ in _listed(target))
    text = target.read_text(encoding="utf-8")
    return f"{title}````{_language(target.name)}\n{text}````\n"


def _language(name: str) -> str:
    try:
        aliases: list[str] = get_lexer_for_filename(name).aliases
    except ClassNotFound:
        return "text"
    return aliases[0]
