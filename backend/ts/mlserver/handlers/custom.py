"""`custom_handler` gives a method of a model a REST path of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from ts.mlserver.model import MLModel

_ATTRIBUTE: Final = "__custom_handler__"

_Method = TypeVar("_Method", bound=Callable[..., Any])


class CustomHandler(BaseModel):
    """Where a method is reached: a path as FastAPI writes it, and the HTTP method."""

    rest_path: str
    rest_method: str = "POST"


def custom_handler(rest_path: str, rest_method: str = "POST") -> Callable[[_Method], _Method]:
    """Decorate a method of an `MLModel` to serve a REST path while the model is loaded.

    The method's parameters are FastAPI's: ``request: Request``, ``payload: list = Body(...)`` and so on.
    """

    def decorate(method: _Method) -> _Method:
        register_custom_handler(CustomHandler(rest_path=rest_path, rest_method=rest_method), method)
        return method

    return decorate


def register_custom_handler(handler: CustomHandler, method: Callable[..., Any]) -> None:
    """Let ``method`` serve the path that ``handler`` names."""
    setattr(method, _ATTRIBUTE, handler)


def get_custom_handlers(model: MLModel) -> list[tuple[CustomHandler, Callable[..., Any]]]:
    """Return the custom handlers of a model with the methods that they belong to."""
    members = (member for _, member in inspect.getmembers(model))
    return [(getattr(member, _ATTRIBUTE), member) for member in members if hasattr(member, _ATTRIBUTE)]
