"""Java properties files: reading them, with the line of each key, and writing them.

The format is that of ``java.util.Properties``: ``key=value`` (also ``key: value`` and ``key value``), ``#`` and ``!``
start a comment line, a backslash at the end of a line continues it on the next, and ``\\t``, ``\\n``, ``\\uXXXX`` are
escapes. A backslash before any other character is dropped, as Java does: a regular expression needs it twice.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_py.base.settings.model_spec import ModelSpec
from ts.protocol.regular_files import read_regular

_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(.{0,4})|(.?))", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_GLUED = re.compile(r"(?i:(?P<boolean>true|false))(?P<key>[A-Za-z_]+)[ \t]*[=:][ \t]*(?P<value>.*)", re.DOTALL)
_BLANK = " \t\f"
#: A snapshot has all models of a server in one line.
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Property:
    """One entry of a file: key, value, and the number of the line on which it starts (the first is 1)."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """A line is malformed; ``line`` is its number."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def read_properties(path: Path) -> list[Property]:
    """Read the file at ``path``: as UTF-8 or, if it is not valid UTF-8, as Latin-1, which Java's reader assumes.

    Raises OSError: the file cannot be read, or is none; ValueError: it is too large; PropertiesError: a line is
    malformed.
    """
    content = read_regular(path, _MAX_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return parse_properties(text)


def parse_properties(text: str) -> list[Property]:
    """Return the entries of ``text`` in order; a key may occur several times.

    Raises PropertiesError: an escape is malformed.
    """
    return [_parse_entry(entry, line) for line, entry in _logical_lines(text)]


def split_glued(entry: Property, known: Collection[str]) -> tuple[Property, ...]:
    """Split an entry that a missing line break has joined with the next one; return any other entry alone.

    SageMaker's toolkit writes ``enable_model_api=truedefault_response_timeout=60``: it appends to a file that does not
    end in a line break. The value must be a boolean; ``known`` are the keys that may follow it.
    """
    glued = _GLUED.fullmatch(entry.value)
    if glued is None or glued["key"] not in known:
        return (entry,)
    return Property(entry.key, glued["boolean"], entry.line), Property(glued["key"], glued["value"], entry.line)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    joined: list[str] = []
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        stripped = natural.lstrip(_BLANK)
        if not joined:
            if not stripped or stripped[0] in "#!":
                continue
            first = number
        if _is_continued(stripped):
            joined.append(stripped[:-1])
            continue
        yield first, "".join([*joined, stripped])
        joined = []
    if joined:
        yield first, "".join(joined)


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _parse_entry(entry: str, line: int) -> Property:
    parts = _ENTRY.fullmatch(entry)
    assert parts is not None, "any text is an entry"
    return Property(_unescape(parts[1], line), _unescape(parts[2], line), line)


def _unescape(text: str, line: int) -> str:
    def replacement(match: re.Match[str]) -> str:
        digits: str | None = match[1]
        if digits is None:
            character: str = match[2]
            return _CONTROL.get(character, character)
        if re.fullmatch(r"[0-9a-fA-F]{4}", digits) is None:
            raise PropertiesError(f"\\u{digits} is no character: expected \\u and four hexadecimal digits", line)
        return chr(int(digits, 16))

    return _ESCAPE.sub(replacement, text)


def properties_text(entries: Iterable[tuple[str, str]]) -> str:
    """Return the text of a properties file that holds the entries."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in entries)


def _escape(value: str) -> str:
    text = value.replace("\\", "\\\\")
    for character, name in (("\n", "n"), ("\r", "r"), ("\t", "t"), ("\f", "f")):
        text = text.replace(character, f"\\{name}")
    return "\\" + text if text.startswith(" ") else text


def written(value: Any) -> str:
    """Return a value exactly as config.properties writes it; None and empty lists and maps are empty."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, tuple) and not isinstance(value, ModelSpec):
        return ",".join(map(written, value))
    if isinstance(value, dict):
        return (
            json.dumps(value, default=lambda entry: entry.model_dump(by_alias=True, exclude_none=True)) if value else ""
        )
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "" if value is None else str(value)
