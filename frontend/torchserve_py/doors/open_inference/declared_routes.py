"""The routes that a model declares for itself, checked."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from torchserve_py.doors.path_templates import PathTemplate, read_template, shown

_MAX_ROUTES: Final = 1000
_METHOD: Final = re.compile(r"[A-Z]{1,20}")


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
        raise ValueError(f"its routes must be a list of up to {_MAX_ROUTES} entries, they are {shown(declared)}")
    return tuple(map(_route, declared))


def _route(declared: Any) -> DeclaredRoute:
    match declared:
        case [str() as path, [*methods], str() as endpoint] if methods and all(map(_is_method, methods)):
            return DeclaredRoute(read_template(path), tuple(methods), endpoint)
    raise ValueError(f"a route must be a path, a list of methods and a name, it is {shown(declared)}")


def _is_method(value: Any) -> bool:
    return isinstance(value, str) and _METHOD.fullmatch(value) is not None
