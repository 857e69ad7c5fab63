"""Between the requests and responses of `ts.open_inference` and those that MLServer's models take and give."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from ts.open_inference.tensors import flat_list
from ts.open_inference.types import InferenceRequest, InferenceResponse, Tensor
from ts.runtimes.errors import Failure
from ts.runtimes.mlserver.api import UnreadData, types

_LONG: Final = 1000


def model_request(request: InferenceRequest, headers: Mapping[str, str]) -> types.InferenceRequest:
    """Return a request as a model gets it, with the HTTP headers or gRPC metadata among its parameters.

    Raises:
        Failure: A parameter has a type that it cannot have.
    """
    members: dict[str, Any] = {
        "id": request.id or "",
        "parameters": {**request.parameters, "headers": headers},
        "inputs": [_model_input(tensor) for tensor in request.inputs],
    }
    if request.outputs is not None:
        members["outputs"] = [{"name": each.name, "parameters": each.parameters or None} for each in request.outputs]
    try:
        return types.InferenceRequest.model_validate(members)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(str(each) for each in first["loc"])
        raise Failure(422, f"The request's {place} is {first['input']!r}: {first['msg']}.") from error


def wire_response(response: Any, request: types.InferenceRequest) -> InferenceResponse:
    """Return a model's response with the request's id.

    Raises:
        Failure: It is none.
    """
    if not isinstance(response, types.InferenceResponse):
        raise Failure(500, f"The model returned a {type(response).__name__}; it must be an InferenceResponse.")
    return InferenceResponse(
        model_name=response.model_name,
        model_version=response.model_version,
        id=request.id,
        parameters=parameters_of(response),
        outputs=[_wire_output(output) for output in response.outputs],
    )


def parameters_of(parametrised: Any) -> dict[str, Any]:
    """Return the parameters that are set, by name."""
    parameters = parametrised.parameters
    if parameters is None:
        return {}
    # The dump of pydantic would do, but takes several times as long.
    members = {**parameters.__dict__, **(parameters.__pydantic_extra__ or {})}
    return {name: value for name, value in members.items() if value is not None and not name.startswith("_")}


def _model_input(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "datatype": tensor.datatype,
        "parameters": tensor.parameters or None,
        "data": _model_data(tensor),
    }


def _model_data(tensor: Tensor) -> types.TensorData | list[Any]:
    if not isinstance(tensor.data, list):
        return UnreadData.of_tensor(tensor)
    elements = flat_list(tensor)
    # Validation copies a list; not validating takes longer for a short one.
    return elements if len(elements) < _LONG else types.TensorData.model_construct(elements)


def _wire_output(output: types.ResponseOutput) -> Tensor:
    datatype = str(getattr(output.datatype, "value", output.datatype))
    unread = unread_tensor(output.data)
    if unread is None:
        data: Any = flat(getattr(output.data, "root", output.data))
    else:
        data = unread.data if unread.datatype == datatype else flat_list(unread)
    return Tensor(output.name, datatype, list(output.shape), data, parameters_of(output))


def unread_tensor(data: Any) -> Tensor | None:
    """Return the tensor that a model's data are, None if they are a list."""
    return data.tensor if isinstance(data, UnreadData) else None


def flat(data: Any) -> list[Any]:
    """Return a tensor's data, however a model has written them, as a flat list."""
    if hasattr(data, "tolist"):
        data = data.tolist()
    if not isinstance(data, list | tuple):
        return [data]
    kinds = set(map(type, data))  # far faster than to look at each
    if not any(issubclass(kind, list | tuple) for kind in kinds):
        return data if isinstance(data, list) else list(data)
    return [each for element in data for each in flat(element)]


def lower_case_headers(headers: Sequence[tuple[Any, Any]]) -> dict[str, str]:
    """Return the request's headers by their names in lower case, without those that the server itself has added."""
    return {
        name: value.decode("latin-1") if type(value) is bytes else str(value)
        for raw, value in headers
        if (name := _name(raw))
    }


@functools.lru_cache(maxsize=1024)
def _name(raw: bytes | str) -> str:
    """Return a header's name in lower case; "" for one of the server's own."""
    text = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    return "" if text.startswith(":") else text.lower()
