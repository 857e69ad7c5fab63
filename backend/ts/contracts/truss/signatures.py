"""Determines from a method's signature which arguments the method takes and what kind of function it is.

The rules are Truss's: a method takes nothing, its inputs, the request, or its inputs and then the request; a parameter
is the request if it is annotated with `starlette.requests.Request` (which ``fastapi.Request`` is too). Annotations that
are text, as with ``from __future__ import annotations``, are resolved.
"""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from starlette.requests import Request

_EMPTY: Final = inspect.Parameter.empty


class ModelDefinitionError(TypeError):
    """A method of the model class breaks a rule for its arguments or its kind."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the model.

    Attributes:
        is_function: Whether it is a plain function, which may block and so is called in a thread. A call of the others
            (coroutine functions, generator functions) returns immediately.
        is_coroutine: Whether it is an ``async def`` that does not yield.
        is_generator: Whether it is a function that yields, asynchronous or not.
        input_annotation: The annotation of its first parameter, resolved; or `inspect.Parameter.empty`.
        return_annotation: The annotation of its result, resolved in the same way.
    """

    name: str
    function: Callable[..., Any]
    takes_inputs: bool
    takes_request: bool
    is_function: bool
    is_coroutine: bool
    is_generator: bool
    input_annotation: Any
    return_annotation: Any


def method_of(model: Any, name: str) -> Method | None:
    """Describe a method, or return None without it. Raises ModelDefinitionError: its arguments break Truss's rules."""
    function = getattr(model, name, None)
    if function is None:
        return None
    if not callable(function):
        raise ModelDefinitionError(f"{name} of the model is a {type(function).__name__}; it must be a method.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ModelDefinitionError(f"{name} of the model has no signature that can be read: {error}") from error
    parameters = list(signature.parameters.values())
    annotations = [_resolved(function, parameter.annotation) for parameter in parameters]
    code = _code(function)
    is_generator = inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)
    is_coroutine = inspect.iscoroutinefunction(code)
    takes_inputs, takes_request = _arguments(name, signature, annotations)
    return Method(
        name=name,
        function=function,
        takes_inputs=takes_inputs,
        takes_request=takes_request,
        is_function=not (is_generator or is_coroutine),
        is_coroutine=is_coroutine,
        is_generator=is_generator,
        input_annotation=annotations[0] if annotations else _EMPTY,
        return_annotation=_resolved(function, signature.return_annotation),
    )


def takes(function: Callable[..., Any], name: str) -> bool:
    """Tell whether ``function`` can be called with the keyword argument ``name``."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    parameter = parameters.get(name)
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _arguments(name: str, signature: inspect.Signature, annotations: list[Any]) -> tuple[bool, bool]:
    """Return whether the method takes its inputs, and whether it takes the request."""
    are_requests = [isinstance(annotation, type) and issubclass(annotation, Request) for annotation in annotations]
    match are_requests:
        case []:
            return False, False
        case [is_request]:
            return not is_request, is_request
        case [False, True]:
            return True, True
        case [True, _]:
            problem = "of two arguments the first may not be the request"
        case [False, False]:
            problem = "the second of two arguments must be the request, and annotated so"
            if isinstance(annotations[1], str):
                problem += f" (its annotation {annotations[1]!r} cannot be resolved: import it at run time)"
        case _:
            problem = f"it takes {len(annotations)} arguments, and two are the most"
    raise ModelDefinitionError(
        f"{name}{shown(signature)}: {problem}. Right is {name}(self), {name}(self, inputs), {name}(self, request: "
        f"fastapi.Request) or {name}(self, inputs, request: fastapi.Request)."
    )


def shown(signature: inspect.Signature) -> str:
    """Return a method's signature as its author wrote it."""
    return f"({', '.join(('self', *map(str, signature.parameters.values())))})"


def _code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs when an object is called."""
    while isinstance(function, functools.partial):
        function = function.func
    unwrapped: Callable[..., Any] = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    return unwrapped


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return the type of an annotation, or its text if it cannot be resolved."""
    if not isinstance(annotation, str):
        return annotation
    names = getattr(_code(function), "__globals__", {})  # a bound method passes its function's on
    try:
        return typing.get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), names, names)["it"]
    except Exception:  # the author's expression may raise anything; then the type is unknown
        return annotation
