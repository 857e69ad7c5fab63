"""Finds the function, class or object that a handler's module gives to `ts.serve`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ts.jobs.errors import LoadError
from ts.serve_decorator import MARK, METHOD, OBJECTS, ServeOptions

if TYPE_CHECKING:
    from ts.contracts.served_functions.served_function import ServedFunction


def adapt(module: ModuleType, function: str = "") -> ServedFunction | None:
    """Return the handler around what a module decorates; None if it decorates nothing, or not ``function``.

    The names of the other functions that it decorates call these from now on, see `calls`.

    Raises LoadError: it decorates several things and ``function`` is empty, or one that cannot be served.
    """
    marked = _decorated_in(module)
    found = [each for each in marked if each[0].__name__ == function] if function else [*OBJECTS, *marked]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(getattr(target, "__name__", type(target).__name__) for target, _ in found)
        raise LoadError(f"{module.__name__}.py has {len(found)} models: {names}. Choose one as the handler, FILE:NAME.")
    from ts.contracts.served_functions.served_function import (
        ServedFunction,  # pydantic, which other handlers may not need
    )

    target, options = found[0]
    others = [each for each in marked if each[0] is not target and _can_be_called(each[0])]
    if not others:
        return ServedFunction(target, options)
    from ts.contracts.served_functions.calls import Calls, call_instead

    calls = Calls()
    call_instead(module, others, calls)
    return ServedFunction(target, options, calls)


def _can_be_called(target: Callable[..., Any]) -> bool:
    """Return whether a function, or a class, answers requests: a class without the method fails in its own worker."""
    return not isinstance(target, type) or hasattr(target, METHOD)


def _decorated_in(module: ModuleType) -> list[tuple[Callable[..., Any], ServeOptions]]:
    """Return the functions and classes that a module itself defines and decorates, with their options."""
    defined = {id(each): each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__}
    return [(each, vars(each)[MARK]) for each in defined.values() if MARK in getattr(each, "__dict__", ())]
