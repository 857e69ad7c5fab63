"""From an `InferenceResponse` to the body of a REST answer: JSON, or JSON with binary tensors behind it."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from ts.apis.open_inference.tensors import flat_list, json_numbers, raw_bytes
from ts.apis.open_inference.types import InferenceRequest, InferenceResponse, Tensor
from ts.jobs.errors import RowFailure
from ts.protocol.frames import Buffer
from ts.protocol.media_types import BYTES, JSON

#: The request and response header with the length of the JSON before the binary tensors.
LENGTH_HEADER: Final = "Inference-Header-Content-Length"
_JSON_TYPE: Final = ("content-type", JSON)
_BINARY_TYPE: Final = ("content-type", BYTES)


def selected_outputs(request: InferenceRequest, response: InferenceResponse) -> list[Tensor]:
    """Return the outputs that the client asked for. Raises Failure: the response lacks one of them."""
    if not request.outputs:
        return response.outputs
    wanted = {each.name for each in request.outputs}
    outputs = [output for output in response.outputs if output.name in wanted]
    if len(outputs) < len(wanted):
        there = [output.name for output in response.outputs]
        missing = ", ".join(repr(name) for name in sorted(wanted.difference(there)))
        raise RowFailure(
            400, f"The model has no output {missing}; its outputs are {', '.join(map(repr, there)) or 'none'}."
        )
    return outputs


def write_response(
    request: InferenceRequest,
    response: InferenceResponse,
    *,
    is_binary: Callable[[str], bool] | None,
    bare: bool,
    bare_json: bool,
) -> tuple[list[tuple[str, str]], Buffer]:
    """Return headers and body.

    Args:
        is_binary: Whether the client wants the output of a name in the raw form; None if it wants no such output.
        bare: Whether the response leaves out parameters that are empty, as Triton's do.
        bare_json: Whether outputs in JSON go without their parameters: Triton's client in C++ takes an output that has
            any for a binary one.

    Raises:
        Failure: The requested form cannot represent an output.
    """
    outputs, raws = [], []
    for tensor in selected_outputs(request, response):
        binary = is_binary is not None and is_binary(tensor.name)
        output = _described(tensor, with_parameters=binary or not bare_json)
        if binary:
            raw = raw_bytes(tensor)
            size = raw.nbytes if isinstance(raw, memoryview) else len(raw)
            output["parameters"] = {**tensor.parameters, "binary_data_size": size}
            raws.append(raw)
        else:
            output["data"] = json_elements(tensor)
        outputs.append(output)
    members, headers = _head(request, response)
    if bare and not members["parameters"]:
        del members["parameters"]
    members["outputs"] = outputs
    text = to_json(members)
    if not any(raws):
        return [_JSON_TYPE, *headers], text
    return [_BINARY_TYPE, (LENGTH_HEADER, str(len(text))), *headers], b"".join([text, *raws])


def write_event(request: InferenceRequest, response: InferenceResponse) -> tuple[list[tuple[str, str]], bytes]:
    """Return headers, and a response as a line of JSON, for an event of a stream.

    Raises Failure: JSON cannot hold an output.
    """
    members, headers = _head(request, response)
    if not members["parameters"]:
        del members["parameters"]
    outputs = selected_outputs(request, response)
    members["outputs"] = [{**_described(tensor), "data": json_elements(tensor)} for tensor in outputs]
    return headers, to_json(members)


def _described(tensor: Tensor, *, with_parameters: bool = True) -> dict[str, Any]:
    output: dict[str, Any] = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
    if tensor.parameters and with_parameters:
        output["parameters"] = tensor.parameters
    return output


def json_elements(tensor: Tensor) -> Any:
    """Return a tensor's elements for `to_json`. Raises Failure: an element of BYTES is not UTF-8 text."""
    if tensor.datatype != "BYTES":
        return json_numbers(tensor)
    try:
        return [each if type(each) is str else bytes(each).decode() for each in flat_list(tensor)]
    except UnicodeDecodeError as error:
        raise RowFailure(
            400,
            f"Output {tensor.name!r} holds bytes that are no UTF-8 text ({error.reason} at position {error.start}), "
            'which JSON cannot hold: ask for it with "binary_data": true, or let the model encode it as base64.',
        ) from error


def to_json(members: dict[str, Any]) -> bytes:
    """Return compact JSON, NaN and infinities as null. Raises Failure: JSON cannot represent a value."""
    try:
        return orjson.dumps(members, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise RowFailure(500, f"The response of the model cannot be said in JSON: {error}.") from error


def _head(request: InferenceRequest, response: InferenceResponse) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the members before the outputs, and the HTTP headers that the model set among the parameters."""
    members: dict[str, Any] = {"model_name": response.model_name}
    if response.model_version:
        members["model_version"] = response.model_version
    members["id"] = response.id or request.id
    parameters = {name: value for name, value in response.parameters.items() if value is not None}
    headers = parameters.pop("headers", None) or {}
    members["parameters"] = parameters
    return members, [(str(name), str(value)) for name, value in headers.items()]
