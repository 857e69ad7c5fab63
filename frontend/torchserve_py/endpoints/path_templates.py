"""Path patterns in FastAPI's notation, matched in linear time.

``/items/{id}``, ``/models/{name}:predict``, ``/f/{name}-{size}.json``, ``/files/{name:path}/meta``. A pattern becomes a
regular expression that does not try every way to share a text among parameters: within a segment a parameter ends at
the earliest place of the fixed text behind it, which is the best one; and a parameter that spans segments, of which
there is one at most, gets what the segments before and behind it leave.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

_MAX_TEMPLATE: Final = 1000
_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")
_PARAMETER_TEXT: Final = re.compile(r"[A-Za-z_]\w{0,99}(?::(?:str|int|float|uuid|path))?", re.ASCII)
_PATH_SEGMENT: Final = re.compile(r"\{[^{}]*:path\}")


@lru_cache(1024)
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL)


class PathTemplate(NamedTuple):
    """A path with parameters.

    Attributes:
        names: The parameters, in order.
        expression: Matches whole paths, with a group for each parameter. It is compiled when it is first needed: a
            server has hundreds.
        first: The first segment, or None if it is or holds a parameter.
        specificity: The key by which patterns are sorted so that a more specific one comes first.
    """

    names: tuple[str, ...]
    expression: str
    first: str | None
    specificity: tuple[int, ...]

    def match(self, path: str) -> dict[str, str] | None:
        """Return the values of the parameters, each of one character or more; None if the path does not match."""
        found = _compiled(self.expression).fullmatch(path)
        return None if found is None else dict(zip(self.names, found.groups(), strict=True))


@lru_cache(1024)  # the listeners of a server share most paths
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
    segments = text.split("/")[1:]
    spanning = [segment for segment in segments if ":path}" in segment]
    if len(spanning) > 1 or not all(map(_PATH_SEGMENT.fullmatch, spanning)):
        raise ValueError(f"the path {shown(text)} may have one parameter of the kind path, as a segment of its own")
    expression, specificity = "", []
    for behind, segment in zip(reversed(range(len(segments))), segments, strict=True):
        pieces = _PARAMETER.sub("{", segment).split("{")
        if segment in spanning:
            specificity.append(3)
            expression += rf"/(.+)(?=(?:/[^/]*+){{{behind}}}\Z)"
        else:  # fixed text, text with a parameter in it, or a parameter alone
            specificity.append(0 if len(pieces) == 1 else 1 if any(pieces) else 2)
            expression += f"/{_expression_of(pieces)}"
    first = None if specificity[0] else segments[0]
    return PathTemplate(names, expression, first, tuple(specificity))


def _expression_of(pieces: list[str]) -> str:
    """Return the expression for a segment, whose parameters stand between fixed pieces; it never looks back."""
    first, *middle = map(re.escape, pieces)
    if not middle:
        return first
    *middle, last = middle
    inner = "".join(f"(?>([^/]+?){piece})" for piece in middle)
    return rf"(?>{first}{inner}([^/]+){last}(?=/|\Z))"


def shown(value: object) -> str:
    """Return a value as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
