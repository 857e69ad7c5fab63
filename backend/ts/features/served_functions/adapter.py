"""Finds the function, class or object that a handler's module gives to `ts.serve`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ts.jobs.errors import LoadError
from ts.serve_decorator import MARK, OBJECTS, Options

if TYPE_CHECKING:
    from ts.features.served_functions.served_function import ServedFunction


def adapt(module: ModuleType) -> ServedFunction | None:
    """Return the handler around what a module decorates; None if it decorates nothing.

    Raises LoadError: it decorates several things, or one that cannot be served.
    """
    found = _decorated_in(module)
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(getattr(target, "__name__", type(target).__name__) for target, _ in found)
        raise LoadError(f"{module.__name__}.py has {len(found)} models: {names}. Decorate one with ts.serve.")
    from ts.features.served_functions.served_function import (
        ServedFunction,  # pydantic, which other handlers may not need
    )

    return ServedFunction(*found[0])


def _decorated_in(module: ModuleType) -> list[tuple[Callable[..., Any], Options]]:
    """Return the functions and classes that a module itself defines and decorates, and objects, with their options."""
    defined = {id(each): each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__}
    marked = [(each, vars(each)[MARK]) for each in defined.values() if MARK in getattr(each, "__dict__", ())]
    return [*OBJECTS, *marked]
