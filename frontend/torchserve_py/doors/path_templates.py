"""Path patterns in FastAPI's notation, matched in linear time.

``/items/{id}``, ``/models/{name}:predict``, ``/f/{name}-{size}.json``, ``/files/{name:path}/meta``. A path's segments
are compared one by one with those of a pattern, without backtracking: within a segment the earliest place of each fixed
piece is the best one, and a parameter that spans segments may stand once, so that it gets what the segments before and
behind it leave. A regular expression would try every way to share a text among parameters.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_MAX_TEMPLATE: Final = 1000
_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")
_PARAMETER_TEXT: Final = re.compile(r"[A-Za-z_]\w{0,99}(?::(?:str|int|float|uuid|path))?", re.ASCII)
_PATH_SEGMENT: Final = re.compile(r"\{[^{}]*:path\}")

#: The fixed pieces of a segment, with a parameter between each two.
_Segment = tuple[str, ...]
#: A segment that is a parameter.
_WHOLE: Final[_Segment] = ("", "")


class PathTemplate(NamedTuple):
    """A path with parameters.

    Attributes:
        names: The parameters, in order.
        head: The segments before a parameter that spans segments; all, where there is no such parameter.
        tail: The segments behind it; None where there is no such parameter.
    """

    names: tuple[str, ...]
    head: tuple[_Segment, ...]
    tail: tuple[_Segment, ...] | None

    def match(self, path: Sequence[str]) -> dict[str, str] | None:
        """Return the values of the parameters, each of one character or more; None if the segments do not match."""
        before, behind = len(self.head), len(path) - len(self.tail or ())
        if len(path) != before if self.tail is None else behind <= before:
            return None
        values: list[str] = []
        if not _take(self.head, path, values):
            return None
        if self.tail is not None:
            spanned = "/".join(path[before:behind])
            values.append(spanned)
            if not spanned or not _take(self.tail, path[behind:], values):
                return None
        return dict(zip(self.names, values, strict=True))

    def fixed_segment(self, index: int) -> str | None:
        """Return the text of a segment, or None if it is or holds a parameter."""
        pieces = self.head[index] if index < len(self.head) else ()
        return pieces[0] if len(pieces) == 1 else None

    @property
    def specificity(self) -> tuple[int, ...]:
        """The key by which patterns are sorted so that a more specific one comes first."""
        spanning = () if self.tail is None else (3, *map(_parameters_in, self.tail))
        return (*map(_parameters_in, self.head), *spanning)


def read_template(text: str) -> PathTemplate:
    """Read a path with parameters. Raises ValueError: the path cannot be served."""
    if not text.startswith("/") or len(text) > _MAX_TEMPLATE:
        raise ValueError(f"the path {shown(text)} must begin with a slash and have up to {_MAX_TEMPLATE} characters")
    parameters = _PARAMETER.findall(text)
    for parameter in parameters:
        if not _PARAMETER_TEXT.fullmatch(parameter):
            raise ValueError(f"the path {shown(text)} has a parameter {shown(parameter)}, which FastAPI does not have")
    if re.search("[{}]", _PARAMETER.sub("", text)):
        raise ValueError(f"the path {shown(text)} has a brace that belongs to no parameter")
    names = tuple(parameter.partition(":")[0] for parameter in parameters)
    segments = text.split("/")
    spanning = [index for index, segment in enumerate(segments) if ":path}" in segment]
    if not spanning:
        return PathTemplate(names, tuple(map(_segment, segments)), None)
    if len(spanning) > 1 or not _PATH_SEGMENT.fullmatch(segments[spanning[0]]):
        raise ValueError(f"the path {shown(text)} may have one parameter of the kind path, as a segment of its own")
    head, tail = segments[: spanning[0]], segments[spanning[0] + 1 :]
    return PathTemplate(names, tuple(map(_segment, head)), tuple(map(_segment, tail)))


def shown(value: object) -> str:
    """Return a value as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _segment(text: str) -> _Segment:
    return tuple(_PARAMETER.sub("{", text).split("{"))


def _parameters_in(pieces: _Segment) -> int:
    """Return 0 for fixed text, 1 for text with a parameter in it, 2 for a parameter alone."""
    return 0 if len(pieces) == 1 else 1 if any(pieces) else 2


def _take(template: Sequence[_Segment], path: Sequence[str], values: list[str]) -> bool:
    """Append the values of the parameters in the first segments; return whether the segments match."""
    for pieces, text in zip(template, path, strict=False):
        if len(pieces) == 1:
            if pieces[0] != text:
                return False
        elif pieces == _WHOLE:
            if not text:
                return False
            values.append(text)
        elif (found := _values(pieces, text)) is None:
            return False
        else:
            values += found
    return True


def _values(pieces: _Segment, text: str) -> Sequence[str] | None:
    """Return the values of the parameters in one segment, or None if it does not match."""
    first, last = pieces[0], pieces[-1]
    at, end = len(first), len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last):
        return None
    values = []
    for piece in pieces[1:-1]:
        found = text.find(piece, at + 1, end)
        if found < 0:
            return None
        values.append(text[at:found])
        at = found + len(piece)
    if at >= end:
        return None
    values.append(text[at:end])
    return values
