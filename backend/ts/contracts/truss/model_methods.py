"""Derives the endpoints of a Truss model, and the methods that each endpoint runs, from the model's methods.

Checks the rules between methods when the model is loaded: a method that would discard another method's result, or that
can never be called, is refused with a message that names the method and the right form.
"""

import collections.abc
import inspect
import logging
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from ts.contracts.truss.signatures import Method, ModelDefinitionError, method_of, shown

logger = logging.getLogger(__name__)

#: Methods with an endpoint of their own that follow OpenAI's and Anthropic's paths.
ALIASES: Final = ("chat_completions", "completions", "embeddings", "messages", "responses")
PREDICT: Final = "predict"
WEBSOCKET: Final = "websocket"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The methods that one kind of call runs: ``main``, and around it, for predict, ``preprocess`` and ``postprocess``.

    The inputs are parsed to ``input_type``; None leaves them as decoded.
    """

    main: Method
    preprocess: Method | None = None
    postprocess: Method | None = None
    input_type: type[BaseModel] | None = None

    @property
    def needs_inputs(self) -> bool:
        """Whether the payload is to be decoded: the method that runs first takes inputs."""
        return (self.preprocess or self.main).takes_inputs

    @property
    def takes_request(self) -> bool:
        """Whether any of its methods gets the request."""
        steps = (self.preprocess, self.main, self.postprocess)
        return any(step is not None and step.takes_request for step in steps)

    @property
    def streams(self) -> bool:
        """Whether its answer is known to come in parts."""
        return (self.postprocess or self.main).is_generator


@dataclass(frozen=True, slots=True)
class Description:
    """The methods of a model that are called while it serves; ``websocket`` is not among ``endpoints``."""

    endpoints: Mapping[str, Endpoint]
    websocket: Method | None
    is_healthy: Method | None
    setup_environment: Method | None

    @property
    def names(self) -> list[str]:
        return [*self.endpoints, *((WEBSOCKET,) if self.websocket else ())]

    @property
    def schema(self) -> dict[str, Any] | None:
        """The schema of predict; None if its methods are not annotated."""
        predict = self.endpoints.get(PREDICT)
        if predict is None:
            return None
        return schema_of(predict.input_type, (predict.postprocess or predict.main).return_annotation)


def describe(model: Any) -> Description:
    """Inspect a model. Raises ModelDefinitionError: a method has a wrong form, or methods exclude each other."""
    setup_environment = method_of(model, "setup_environment")
    aliases = [method for name in ALIASES if (method := method_of(model, name)) is not None]
    endpoints = {each.name: Endpoint(each, input_type=input_model(each.input_annotation)) for each in aliases}
    is_healthy = method_of(model, "is_healthy")
    if is_healthy is not None and (is_healthy.takes_inputs or is_healthy.takes_request):
        raise ModelDefinitionError(f"is_healthy{_shown(is_healthy)}: it takes no arguments. Right is is_healthy(self).")
    websocket, predict = method_of(model, WEBSOCKET), method_of(model, PREDICT)
    preprocess, postprocess = method_of(model, "preprocess"), method_of(model, "postprocess")
    if websocket is not None:
        _check_websocket(websocket, [predict, preprocess, postprocess])
    elif predict is None and (preprocess is not None or postprocess is not None or not endpoints):
        raise ModelDefinitionError(
            "The model needs a predict or websocket method, such as predict(self, inputs), or one of "
            f"{', '.join(ALIASES)}."
        )
    if predict is not None:
        endpoints = {PREDICT: _predict(predict, preprocess, postprocess), **endpoints}
    return Description(endpoints, websocket, is_healthy, setup_environment)


def _predict(predict: Method, preprocess: Method | None, postprocess: Method | None) -> Endpoint:
    if preprocess is not None and not predict.takes_inputs and predict.takes_request:
        raise ModelDefinitionError(
            f"predict{_shown(predict)}: the model has a preprocess, whose result predict would throw away. Right is "
            "predict(self, inputs) or predict(self, inputs, request: fastapi.Request)."
        )
    if postprocess is not None:
        if not postprocess.takes_inputs and postprocess.takes_request:
            raise ModelDefinitionError(
                f"postprocess{_shown(postprocess)}: it would throw away the result of predict. Right is "
                "postprocess(self, result) or postprocess(self, result, request: fastapi.Request)."
            )
        if predict.is_generator:
            logger.warning(
                "predict yields its result, and the model has a postprocess: streaming and postprocess cannot be "
                "combined, so every request will fail. Leave postprocess out, or return the whole result from predict."
            )
    return Endpoint(predict, preprocess, postprocess, input_model((preprocess or predict).input_annotation))


def _check_websocket(websocket: Method, others: list[Method | None]) -> None:
    for other in others:
        if other is not None:
            raise ModelDefinitionError(
                f"The model cannot have both websocket and {other.name}: leave one out. A websocket method reads and "
                "writes the whole session itself."
            )
    right = "Right is async def websocket(self, websocket: fastapi.WebSocket)."
    if websocket.takes_request or not websocket.takes_inputs:
        raise ModelDefinitionError(f"websocket{_shown(websocket)}: it must take only the websocket. {right}")
    if not websocket.is_coroutine:
        raise ModelDefinitionError(f"websocket{_shown(websocket)}: it must be an async function. {right}")


def _shown(method: Method) -> str:
    return shown(inspect.signature(method.function))


_STREAMS: Final = (
    collections.abc.Generator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.AsyncIterator,
)


def input_model(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model that inputs are parsed to; None where the annotation is something else."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def schema_of(inputs: type[BaseModel] | None, returns: Any) -> dict[str, Any] | None:
    """Return the schema of inputs and outputs, and whether the model streams.

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
    return input_model(annotation)


def _is_stream(annotation: Any) -> bool:
    return typing.get_origin(annotation) in _STREAMS or annotation in _STREAMS
