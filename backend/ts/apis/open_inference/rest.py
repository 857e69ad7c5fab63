"""The REST form of the Open Inference Protocol: the dialect of a request, and the form of its answer.

A request is JSON; or JSON with binary tensors behind it, where the header ``Inference-Header-Content-Length`` gives the
length of the JSON; or, if that is 0, the bytes of the model's only input. The pseudo header ``:endpoint`` names the
endpoint of a request to another path than ``infer``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from ts.apis.open_inference.json_arrays import parse_with_arrays
from ts.apis.open_inference.json_objects import parse_object
from ts.apis.open_inference.json_request import read_request
from ts.apis.open_inference.json_response import LENGTH_HEADER, write_event, write_response
from ts.apis.open_inference.tensors import LARGE_TENSOR, check
from ts.apis.open_inference.types import InferenceRequest, InferenceResponse, Tensor
from ts.jobs.charsets import in_utf8
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import DATATYPES
from ts.protocol.frames import Buffer
from ts.protocol.media_types import JSON

#: The pseudo header in which the server names the endpoint; absent for `INFER`.
ENDPOINT: Final = ":endpoint"
INFER: Final = "infer"
INFER_STREAM: Final = "infer_stream"
GENERATE: Final = "generate"
GENERATE_STREAM: Final = "generate_stream"

_LENGTH_NAME: Final = LENGTH_HEADER.lower().encode()
#: What the HTTP client of Triton's in C++ names itself; it sends `LENGTH_HEADER` with every request.
_TRITONS_CPP: Final = b"libcurl-agent/"
#: More digits than any length has; Python refuses to convert very many.
_MAX_DIGITS: Final = 20
#: What inputs with binary tensors say of their size.
_OF_BINARY: Final = b"binary_data_size"
_NO_BINARY: Final = memoryview(b"")


class RestRequest:
    """A request that came over REST."""

    def __init__(
        self,
        request: InferenceRequest,
        endpoint: str,
        *,
        has_length: bool,
        all_binary: bool = False,
        bare_json: bool = False,
    ) -> None:
        self.request = request
        self._endpoint = endpoint
        # The parameters about the form of the outputs are not meant for the model.
        wish = _flag(request.parameters, "binary_data_output")
        wishes = {output.name: _flag(output.parameters, "binary_data") for output in request.outputs or ()}
        self._by_name = {name: own for name, own in wishes.items() if own is not None}
        self._default = all_binary if wish is None else wish
        self._any_binary = self._default or any(self._by_name.values())
        self._bare = has_length or wish is not None or bool(self._by_name)
        self._bare_json = bare_json

    def encode(self, response: InferenceResponse) -> tuple[list[tuple[str, str]], Buffer]:
        if self._endpoint in (INFER_STREAM, GENERATE_STREAM):
            return write_event(self.request, response)
        binary = self._is_binary if self._any_binary and self._endpoint == INFER else None
        return write_response(self.request, response, is_binary=binary, bare=self._bare, bare_json=self._bare_json)

    def _is_binary(self, output: str) -> bool:
        return self._by_name.get(output, self._default)


@dataclass(slots=True)
class TextRequest:
    """A request in the text form of ``generate`` or ``generate_stream``."""

    request: InferenceRequest
    with_id: bool

    def encode(self, response: InferenceResponse) -> tuple[list[tuple[str, str]], Buffer]:
        from ts.apis.open_inference.text_dialect import write_text_response

        body = write_text_response(self.request, response, with_id=self.with_id)
        headers = response.parameters.get("headers") or {}
        return [("content-type", JSON), *((str(k), str(v)) for k, v in headers.items())], body


def receive(
    headers: Sequence[tuple[Any, Any]],
    body: bytes,
    declared: Mapping[str, Any],
    job_id: str,
    *,
    content_type: str | bytes | None = None,
    as_mlserver: bool = False,
) -> RestRequest | TextRequest:
    """Decode a request; see `receive.receive`. Raises Failure: the body is not a valid request."""
    endpoint, length = INFER, None
    for name, value in headers:
        if name == ENDPOINT:
            endpoint = value
        elif type(name) is bytes and len(name) == len(_LENGTH_NAME) and name.lower() == _LENGTH_NAME:
            length = _length(value, len(body))
    if length == 0:
        return _receive_raw(memoryview(body), declared, endpoint, job_id)
    if length is None:
        body = in_utf8(body, content_type)
    if length is None or length == len(body):
        large = parse_with_arrays(body) if len(body) >= LARGE_TENSOR else None
        try:
            document, binary = parse_object(body) if large is None else large, _NO_BINARY
        except RowFailure as failure:
            if length is None and _OF_BINARY in body:
                text = f"{failure.message} Binary tensors behind JSON need the header {LENGTH_HEADER}, its length."
                raise RowFailure(failure.status, text) from None
            raise
    else:
        whole = memoryview(body)
        document, binary = parse_object(whole[:length]), whole[length:]
    if endpoint in (GENERATE, GENERATE_STREAM) and document.get("inputs") is None:
        return _receive_text(document, declared, job_id)
    request = read_request(document, binary, job_id, as_mlserver=as_mlserver)
    bare_json = length is not None and _is_tritons_cpp(headers)
    return RestRequest(request, endpoint, has_length=length is not None, bare_json=bare_json)


def has_length(headers: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether a request says how long its JSON is, as those with binary tensors do."""
    return any(type(name) is bytes and name.lower() == _LENGTH_NAME for name, _ in headers)


def _is_tritons_cpp(headers: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether a request is of Triton's client in C++, which performance tools are built with."""
    agents = (value for name, value in headers if type(name) is bytes and name.lower() == b"user-agent")
    return any(agent.startswith(_TRITONS_CPP) for agent in agents)


def _length(value: bytes, size: int) -> int:
    if not value.isdigit() or len(value) > _MAX_DIGITS or int(value) > size:
        shown = value[: _MAX_DIGITS + 1].decode("latin-1")
        raise RowFailure(400, f"{LENGTH_HEADER} is {shown!r}; it must be an integer from 0 to the body's {size} bytes.")
    return int(value)


def _receive_text(document: dict[str, Any], declared: Mapping[str, Any], job_id: str) -> TextRequest:
    from ts.apis.open_inference.text_dialect import TEXT_INPUT, read_text_request

    if document.get(TEXT_INPUT) is None:
        raise RowFailure(422, f'The request must hold "inputs" or "{TEXT_INPUT}".')
    request = read_text_request(document, declared.get("inputs") or (), job_id)
    return TextRequest(request, with_id=bool(document.get("id")))


def _receive_raw(body: memoryview, declared: Mapping[str, Any], endpoint: str, job_id: str) -> RestRequest:
    """Return the request whose body is the data of the model's only input; its outputs have that form, too."""
    inputs: Sequence[Mapping[str, Any]] = declared.get("inputs") or ()
    if len(inputs) != 1:
        raise RowFailure(
            400,
            f"{LENGTH_HEADER} is 0, so that the body is the model's only input; but the model has declared "
            f"{len(inputs)} inputs.",
        )
    (only,) = inputs
    name, datatype = only["name"], only["datatype"]
    if datatype == "BYTES":
        tensor = Tensor(name, datatype, [1] * max(len(only["shape"]), 1), [bytes(body)])
    else:
        shape = _raw_shape([int(size) for size in only["shape"]], body, DATATYPES[datatype].size, declared)
        tensor = Tensor(name, datatype, shape, body)
        check(tensor)
    request = InferenceRequest("", "", job_id, {}, [tensor])
    return RestRequest(request, endpoint, has_length=True, all_binary=True)


def _raw_shape(shape: list[int], body: memoryview, size: int, declared: Mapping[str, Any]) -> list[int]:
    if shape and shape[0] < 0 and declared.get("max_batch_size"):
        shape[0] = 1
    variable = [place for place, length in enumerate(shape) if length < 0]
    if len(variable) > 1:
        raise RowFailure(400, f"A body without JSON does not say which shape it has: the model's input is {shape}.")
    if variable:
        fixed = prod([length for length in shape if length >= 0]) * size
        shape[variable[0]] = len(body) // fixed if fixed else 0
    return shape


def _flag(parameters: dict[str, Any], name: str) -> bool | None:
    value = parameters.pop(name, None)
    if value is None or type(value) is bool:
        return value
    raise RowFailure(422, f'The parameter "{name}" must be true or false, it is {value!r}.')
