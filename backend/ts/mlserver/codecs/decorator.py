"""`decode_args`: a ``predict`` whose parameters and results are Python types, converted by its signature."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from ts.mlserver.codecs.base import InputCodec, RequestCodec
from ts.mlserver.codecs.errors import CodecNotFound, InputMissing, InputsNotFound, OutputNotFound
from ts.mlserver.codecs.registry import find_input_codec, find_request_codec
from ts.mlserver.codecs.utils import Codec
from ts.mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

if TYPE_CHECKING:
    from ts.mlserver.model import MLModel


class SignatureCodec(RequestCodec):
    """Converts between requests and the arguments of a function, by its type hints.

    Args:
        predict: The function.

    Raises:
        CodecNotFound: There is no codec for one of its type hints.
    """

    def __init__(self, predict: Callable[..., Any]) -> None:
        hints = {name: _without_none(hint) for name, hint in get_type_hints(predict).items()}
        self._output_hints = _members(hints.pop("return", None))
        self._inputs = {name: _codec(name, hint, is_input=True) for name, hint in hints.items()}
        self._outputs = [_codec(None, hint, is_input=False) for hint in self._output_hints]
        parameters = inspect.signature(predict).parameters
        optional = get_type_hints(predict)
        self._required = [
            name
            for name in self._inputs
            if parameters[name].default is inspect.Parameter.empty and _without_none(optional[name]) is optional[name]
        ]
        self._absent = {
            name: None
            for name in self._inputs
            if name not in self._required and parameters[name].default is inspect.Parameter.empty
        }

    def decode_request(self, request: InferenceRequest) -> dict[str, Any]:  # type: ignore[override]
        """Return the function's arguments by name.

        Raises:
            InputsNotFound, InputMissing: The request has other inputs than the function has parameters.
        """
        arguments: dict[str, Any] = {}
        others = []
        for request_input in request.inputs:
            codec = self._inputs.get(request_input.name)
            if codec is None:
                others.append(request_input)
            elif _is(codec, InputCodec):
                arguments[request_input.name] = codec.decode_input(request_input)  # type: ignore[union-attr]
            else:
                raise CodecNotFound(name=request_input.name, is_input=True)
        if others:
            name = next((name for name, codec in self._inputs.items() if _is(codec, RequestCodec)), None)
            if name is None:
                raise InputsNotFound(others, self._inputs)
            whole: Any = self._inputs[name]
            arguments[name] = whole.decode_request(InferenceRequest(inputs=others))
        missing = [name for name in self._required if name not in arguments]
        if missing:
            raise InputMissing(missing)
        return {**self._absent, **arguments}

    def encode_response(  # type: ignore[override]
        self, model_name: str, payload: Any, model_version: str | None = None
    ) -> InferenceResponse:
        """Make a response of what the function returned.

        Raises:
            OutputNotFound: It returned what its signature does not say.
        """
        values = [] if payload is None else list(payload) if isinstance(payload, tuple) else [payload]
        outputs = [output for index, value in enumerate(values) for output in self._encoded(index, value)]
        return InferenceResponse(model_name=model_name, model_version=model_version, outputs=outputs)

    def _encoded(self, index: int, value: Any) -> list[ResponseOutput]:
        codec: Any = self._outputs[index] if index < len(self._outputs) else None
        if codec is None or not codec.can_encode(value):
            raise OutputNotFound(index, type(value), self._output_hints)
        if _is(codec, InputCodec):
            return [codec.encode_output(name=f"output-{index}", payload=value)]
        outputs: list[ResponseOutput] = codec.encode_response(model_name="", payload=value).outputs
        return outputs


def decode_args(
    predict: Callable[..., Any],
) -> Callable[[MLModel, InferenceRequest], Coroutine[Any, Any, InferenceResponse]]:
    """Decorate a ``predict`` whose parameters are named like the inputs and hinted with the types of codecs.

    Inputs that no parameter is named like go to the one parameter that a request codec decodes, such as a data frame.
    Results are called ``output-0``, ``output-1`` and so on, or after the columns of a data frame.
    """
    codec = SignatureCodec(predict)

    @wraps(predict)
    async def decoded(self: MLModel, request: InferenceRequest) -> InferenceResponse:
        outputs = predict(self, **codec.decode_request(request))
        if inspect.isawaitable(outputs):
            outputs = await outputs
        return codec.encode_response(self.name, outputs, self.version)

    return decoded


def _codec(name: str | None, hint: Any, *, is_input: bool) -> Codec:
    codec = find_input_codec(type_hint=hint) or find_request_codec(type_hint=hint)
    if codec is None:
        raise CodecNotFound(name=name, payload_type=str(hint), is_input=is_input)
    return codec


def _is(codec: Codec, kind: type[Any]) -> bool:
    return isinstance(codec, kind) or (isinstance(codec, type) and issubclass(codec, kind))


def _without_none(hint: Any) -> Any:
    """Return ``T`` for ``Optional[T]`` and ``T | None``, and any other hint as it is."""
    if get_origin(hint) not in (Union, types.UnionType) or type(None) not in get_args(hint):
        return hint
    members = [member for member in get_args(hint) if member is not type(None)]
    return members[0] if len(members) == 1 else hint


def _members(hint: Any) -> list[Any]:
    """Return the hints of what a function returns, one for each output."""
    if hint is None or hint is type(None):
        return []
    return list(get_args(hint)) if get_origin(hint) is tuple else [hint]
