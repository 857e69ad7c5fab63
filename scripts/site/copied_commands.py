"""MkDocs hook: the button beside a transcript copies its commands, without the prompts and what they print."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_PROMPT = "$ "
_CONTINUED = "\\"
#: A block in which the highlighter has seen prompts.
_TRANSCRIPT = re.compile(r'<code>((?:(?!</code>).)*<span class="gp">\$ (?:(?!</code>).)*)</code>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give each transcript the attribute from which the theme copies."""
    return _TRANSCRIPT.sub(_with_commands, content)


def _with_commands(found: re.Match[str]) -> str:
    shown = html.unescape(_TAG.sub("", found[1]))
    copied = html.escape("\n".join(_commands(shown))).replace("\n", "&#10;")
    return f'<code data-copy="{copied}">{found[1]}</code>'


def _commands(transcript: str) -> Iterator[str]:
    continues = False
    for line in transcript.splitlines():
        is_command = continues or line.startswith(_PROMPT)
        if is_command:
            yield line if continues else line.removeprefix(_PROMPT)
        continues = is_command and line.endswith(_CONTINUED)
