"""MkDocs hook: each setting, key, metric, cause or alert that begins a row is an anchor and links to itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: The first cell of a row that consists of one name, or of several with commas between them.
_FIRST_CELL = re.compile(r"(?<=<tr>\n<td>)<code>[\w-]+</code>(?:, <code>[\w-]+</code>)*(?=</td>)")
_NAME = re.compile(r"<code>([\w-]+)</code>")


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give each name the anchor that is the name; of rows with one name, the first."""
    taken = set(re.findall(r'id="([^"]+)"', content))

    def anchored(found: re.Match[str]) -> str:
        name = found[1]
        if name in taken:
            return found[0]
        taken.add(name)
        return f'<a id="{name}" href="#{name}">{found[0]}</a>'

    return _FIRST_CELL.sub(lambda cell: _NAME.sub(anchored, cell[0]), content)
