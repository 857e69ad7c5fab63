"""The types that a model's methods are annotated with: what inputs are parsed to, and the schema of both ends."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from typing import Any, Final

from pydantic import BaseModel

_STREAMS: Final = (
    collections.abc.Generator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.AsyncIterator,
)


def input_model(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model that inputs are parsed to; None where the annotation is something else."""
    return annotation if _is_model(annotation) else None


def schema_of(inputs: type[BaseModel] | None, returns: Any) -> dict[str, Any] | None:
    """Return the schema that the server tells: of inputs and outputs, and whether it streams.

    Returns:
        None if neither is known.
    """
    output, streams = _output(returns)
    if inputs is None and streams is None:
        return None
    return {
        "input_schema": None if inputs is None else inputs.model_json_schema(),
        "output_schema": None if output is None else output.model_json_schema(),
        "supports_streaming": streams,
    }


def _output(returns: Any) -> tuple[type[BaseModel] | None, bool | None]:
    """Return the type of an answer and whether it may be a stream; (None, None) for any other annotation."""
    if returns is inspect.Parameter.empty:
        return None, None
    if _is_stream(returns):
        return None, True
    model = _model(returns)
    if model is not None:
        return model, False
    if typing.get_origin(returns) in (typing.Union, types.UnionType):
        arms = typing.get_args(returns)
        models = [model for arm in arms if (model := _model(arm)) is not None]
        if len(arms) == 2 and len(models) == 1 and any(map(_is_stream, arms)):
            return models[0], True
    return None, None


def _model(annotation: Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) is collections.abc.Awaitable:
        (annotation,) = typing.get_args(annotation)
    return annotation if _is_model(annotation) else None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_stream(annotation: Any) -> bool:
    return typing.get_origin(annotation) in _STREAMS or annotation in _STREAMS
