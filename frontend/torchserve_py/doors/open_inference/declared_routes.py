"""The paths that a model declares for itself, checked, and matched in a time that does not depend on what is in them.

A path's segments are compared one by one with those of a template as FastAPI has them: ``/items/{id}``,
``/f/{name}-{size}.json``, ``/files/{name:path}/meta``. There is nothing to go back to: within a segment the earliest
place of each fixed piece is the best one, and a parameter that spans segments may stand once, so that it gets what
the segments before and behind it leave. A regular expression would try every way to share a text among parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

_MAX_ROUTES: Final = 1000
_MAX_TEMPLATE: Final = 1000
_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")
_PARAMETER_TEXT: Final = re.compile(r"[A-Za-z_]\w{0,99}(?::(?:str|int|float|uuid|path))?", re.ASCII)
_PATH_SEGMENT: Final = re.compile(r"\{[^{}]*:path\}")
_METHOD: Final = re.compile(r"[A-Z]{1,20}")

#: The fixed pieces of a segment, with a parameter between each two.
_Segment = tuple[str, ...]


class PathTemplate(NamedTuple):
    """A path with parameters.

    Attributes:
        head: The segments before a parameter that spans segments; all, where there is no such parameter.
        tail: The segments behind it; None where there is no such parameter.
    """

    head: tuple[_Segment, ...]
    tail: tuple[_Segment, ...] | None

    def matches(self, path: Sequence[str]) -> bool:
        """Tell whether the segments of a path are as the template has them; a parameter takes one character or more."""
        if self.tail is None:
            return len(path) == len(self.head) and all(map(_matches, self.head, path))
        end = len(path) - len(self.tail)
        spanned = path[len(self.head) : end]
        return (
            len(self.head) < end
            and (len(spanned) > 1 or spanned[0] != "")
            and all(map(_matches, self.head, path))
            and all(map(_matches, self.tail, path[end:]))
        )


class DeclaredRoute(NamedTuple):
    """A path of a model's own, the methods that it is for, and what the worker calls it."""

    template: PathTemplate
    methods: tuple[str, ...]
    endpoint: str


def segments_of(target: str) -> list[str]:
    """Return the segments of a request target, percent-decoded one by one."""
    return [unquote(segment) for segment in target.partition("?")[0].split("/")]


def read_routes(declared: Any) -> tuple[DeclaredRoute, ...]:
    """Read the routes that a worker declares.

    Args:
        declared: A list of ``[path, methods, endpoint]``, or None.

    Raises:
        ValueError: It is something else; the message says which entry, and what is right.
    """
    if declared is None:
        return ()
    if not isinstance(declared, (list, tuple)) or len(declared) > _MAX_ROUTES:
        raise ValueError(f"its routes must be a list of up to {_MAX_ROUTES} entries, they are {_shown(declared)}")
    return tuple(map(_route, declared))


def read_template(text: str) -> PathTemplate:
    """Read a path with parameters.

    Raises:
        ValueError: It is none that can be served.
    """
    if not text.startswith("/") or len(text) > _MAX_TEMPLATE:
        raise ValueError(f"the path {_shown(text)} must begin with a slash and have up to {_MAX_TEMPLATE} characters")
    for parameter in _PARAMETER.findall(text):
        if not _PARAMETER_TEXT.fullmatch(parameter):
            raise ValueError(f"the path {_shown(text)} has a parameter {_shown(parameter)}, which is none of FastAPI's")
    if re.search("[{}]", _PARAMETER.sub("", text)):
        raise ValueError(f"the path {_shown(text)} has a brace that belongs to no parameter")
    segments = text.split("/")
    spanning = [index for index, segment in enumerate(segments) if ":path}" in segment]
    if not spanning:
        return PathTemplate(tuple(map(_segment, segments)), None)
    if len(spanning) > 1 or not _PATH_SEGMENT.fullmatch(segments[spanning[0]]):
        raise ValueError(f"the path {_shown(text)} may have one parameter of the kind path, as a segment of its own")
    head, tail = segments[: spanning[0]], segments[spanning[0] + 1 :]
    return PathTemplate(tuple(map(_segment, head)), tuple(map(_segment, tail)))


def _route(declared: Any) -> DeclaredRoute:
    match declared:
        case [str() as path, [*methods], str() as endpoint] if methods and all(map(_is_method, methods)):
            return DeclaredRoute(read_template(path), tuple(methods), endpoint)
    raise ValueError(f"a route must be a path, a list of methods and a name, it is {_shown(declared)}")


def _is_method(value: Any) -> bool:
    return isinstance(value, str) and _METHOD.fullmatch(value) is not None


def _segment(text: str) -> _Segment:
    return tuple(_PARAMETER.sub("{", text).split("{"))


def _matches(pieces: _Segment, text: str) -> bool:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return text == first
    at, end = len(first), len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last):
        return False
    for piece in pieces[1:-1]:
        found = text.find(piece, at + 1, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at < end


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
