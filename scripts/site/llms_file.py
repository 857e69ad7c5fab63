"""MkDocs hook: writes llms.txt, which names the site's pages for programs that read (https://llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

_FILE = "llms.txt"
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
#: The first sentence of a page: text before a heading, a list, a table or code.
_SENTENCE = re.compile(r"^(?!```|[#|>\-*!<\s]).+?(?:\.(?=\s)|:$)", re.MULTILINE | re.DOTALL)

_sentences: dict[str, str] = {}
_lines: list[str] = []


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Note the order of the pages."""
    _lines[:] = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for item in nav.items:
        title = item.title or config.site_name
        _lines.extend(["", f"## {title}", "", *_pages(item)])
    return nav


def _pages(item: Any) -> Iterator[str]:
    children = getattr(item, "children", None)
    if children is None:
        yield item.file.dest_uri
        return
    for child in children:
        yield from _pages(child)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Note what a page is about."""
    found = _SENTENCE.search(_LINK.sub(r"\1", markdown.partition("\n")[2]))
    about = "" if found is None else ": " + " ".join(found[0].rstrip(":").split())
    _sentences[page.file.dest_uri] = f"- [{page.title}]({page.file.dest_uri}){about}"
    return markdown


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the file."""
    text = "\n".join(_sentences.get(line, line) for line in _lines)
    Path(config.site_dir, _FILE).write_text(f"{text}\n", encoding="utf-8")
