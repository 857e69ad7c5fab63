"""What the source of a handler tells about what it expects."""

import ast
from collections.abc import Iterator
from typing import Final

from torchserve_py.base.python_source import parse

#: Members of an Open Inference request in JSON.
_MEMBERS: Final = frozenset({"inputs", "datatype"})


def open_inference_line(source: bytes) -> int | None:
    """Return the line where a handler reads a member of an Open Inference request in JSON; None if it does not.

    That is a guess: the value may be another one with such a member.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError):
        return None
    return min((key.lineno for key in _keys(tree) if key.value in _MEMBERS), default=None)


def syntax_problem(source: bytes) -> str | None:
    """Return why a source is no Python, and in which line; None if it is."""
    try:
        parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        return str(error)
    return None


def _keys(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the constants by which something is read: ``value["key"]`` and ``value.get("key")``."""
    for node in ast.walk(tree):
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            key = node.args[0] if node.args else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key
