"""What text from outside may look like in a log: nothing in it begins a line of its own or steers a terminal."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from numbers import Number
from types import TracebackType
from typing import Any, Final

#: Control characters but the tab, separators of lines and paragraphs, what reorders text, and lone surrogates.
_UNFIT: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_fit(text: str) -> bool:
    """Tell whether a text is one line, and safe to show."""
    return _UNFIT.search(text) is None


def fit(text: str) -> str:
    """Return the text as one line: what must not be shown as it is becomes an escape such as ``\\\\n``."""
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def message_of(template: Any, arguments: Any) -> str:
    """Return a record's message on one line, but for line breaks that its template has: those are the server's own."""
    if not arguments:
        return fit(str(template))
    if isinstance(arguments, Mapping):
        return str(template) % {name: _fit_value(value) for name, value in arguments.items()}
    return str(template) % tuple(map(_fit_value, arguments))


def exception_text(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> str:
    """Return a traceback; the lines of an exception's text are indented, so that none looks like a line of the log."""
    chunks = []
    for chunk in traceback.format_exception(kind, error, trace):
        if chunk.startswith(("  ", "\n", "Traceback (")):  # a frame of the stack, or what is between two exceptions
            chunks.append(chunk)
        else:
            first, *others = chunk.rstrip("\n").split("\n")
            chunks.append("\n    ".join([fit(first), *map(fit, others)]) + "\n")
    return "".join(chunks).rstrip("\n")


class _Fit:
    """A value whose text is fit for a line."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return fit(str(self._value))

    def __repr__(self) -> str:
        return fit(repr(self._value))


def _fit_value(value: Any) -> Any:
    return value if value is None or isinstance(value, Number) else _Fit(value)
