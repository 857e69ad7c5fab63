"""Makes text from clients and handlers safe for a log: it cannot start a line of its own or control a terminal."""

import re
import traceback
from collections.abc import Mapping
from numbers import Number
from types import TracebackType
from typing import Any, Final

#: Control characters except the tab, line and paragraph separators, bidirectional controls, and lone surrogates.
_UNFIT: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_fit(text: str) -> bool:
    """Return whether a text is one line without such characters."""
    return _UNFIT.search(text) is None


def fit(text: str) -> str:
    """Return the text as one line, with unsafe characters as escapes such as ``\\\\n``."""
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def message_of(template: Any, arguments: Any) -> str:
    """Return the message of a record as one line; line breaks in the template stay, because the server wrote them."""
    if not arguments:
        return fit(str(template))
    if isinstance(arguments, Mapping):
        return str(template) % {name: _fit_value(value) for name, value in arguments.items()}
    return str(template) % tuple(map(_fit_value, arguments))


def exception_text(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> str:
    """Return a traceback; lines of the exception's text are indented, so that they do not look like log lines."""
    chunks = []
    for chunk in traceback.format_exception(kind, error, trace):
        if chunk.startswith(("  ", "\n", "Traceback (")):  # a stack frame, or the text between two exceptions
            chunks.append(chunk)
        else:
            first, *others = chunk.rstrip("\n").split("\n")
            chunks.append("\n    ".join([fit(first), *map(fit, others)]) + "\n")
    return "".join(chunks).rstrip("\n")


class _Fit:
    """A value whose text is safe to log."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return fit(str(self._value))

    def __repr__(self) -> str:
        return fit(repr(self._value))


def _fit_value(value: Any) -> Any:
    return value if value is None or isinstance(value, Number) else _Fit(value)
