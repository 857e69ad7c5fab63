"""From the JSON of a REST request, and the binary tensors behind it, to an `InferenceRequest`.

The rules are those of the Open Inference Protocol and of its binary tensor data extension: ``null`` means absent,
unknown members are ignored, data may be nested or flat. A request that lacks a required member, or has it in the wrong
type, gets status 422; a request whose data do not fit their datatype and shape gets 400.
"""

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from ts.apis.open_inference.json_objects import kind_of, read_id, read_parameters
from ts.apis.open_inference.tensors import check, checked_count, whole_shape
from ts.apis.open_inference.types import InferenceRequest, RequestedOutput, Tensor
from ts.handler_utils.shapes import shown
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import BOUNDS, DATATYPES, FLOATS

_NUMBERS: Final = frozenset((int, float))
#: Python's types that the elements of a datatype may have in JSON.
_ALLOWED: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(BOUNDS, frozenset((int,))),
    **dict.fromkeys(FLOATS, frozenset((int, float, type(None)))),
    "BOOL": frozenset((bool, int)),
    "BYTES": frozenset((str,)),
}
_JSON_TYPES: Final = frozenset((list, dict, str, bool, int, float))
_SIZE: Final = "binary_data_size"
#: The server takes tensors out of shared memory where it supports that, before a worker gets the request.
_WHERE: Final = 'which only "infer" supports, and only with the setting shared_memory_keys'


def read_request(
    document: Mapping[str, Any], binary: memoryview, job_id: str, *, as_mlserver: bool = False
) -> InferenceRequest:
    """Return the request that a JSON object describes.

    Args:
        binary: The binary tensors behind the JSON; empty if there are none.
        job_id: The id of a request without one.
        as_mlserver: Whether a text may be any value of JSON, texts may have any shape, and one size may be -1, as
            MLServer takes them.

    Raises:
        Failure: The object is not a valid request.
    """
    inputs = document.get("inputs")
    if type(inputs) is not list:
        missing = "is missing" if inputs is None else f"is {kind_of(inputs)}"
        raise RowFailure(422, f'The request must hold the list "inputs"; it {missing}.')
    reader = _Inputs(binary, as_mlserver=as_mlserver)
    tensors = [reader.read(each, number) for number, each in enumerate(inputs)]
    reader.check_end()
    outputs = document.get("outputs")
    return InferenceRequest(
        model_name="",
        model_version="",
        id=read_id(document) or job_id,
        parameters=read_parameters(document, "The request"),
        inputs=tensors,
        outputs=_outputs(outputs) or None,
    )


class _Inputs:
    """Reads the inputs of one request in order, each with its share of the binary data."""

    def __init__(self, binary: memoryview, *, as_mlserver: bool) -> None:
        self._binary = binary
        self._as_mlserver = as_mlserver
        self._taken = 0

    def read(self, item: Any, number: int) -> Tensor:
        if type(item) is not dict:
            raise RowFailure(422, f"Input number {number} must be a JSON object, it is {kind_of(item)}.")
        name = item.get("name")
        if type(name) is not str:
            raise RowFailure(422, f'Input number {number} must have a text as "name", it has {kind_of(name)}.')
        datatype = item.get("datatype")
        if type(datatype) is not str or datatype not in DATATYPES:
            known = ", ".join(DATATYPES)
            raise RowFailure(422, f"Input {name!r} has the datatype {datatype!r}; known are {known}.")
        shape = _shape(name, item.get("shape"), least=-1 if self._as_mlserver else 0)
        parameters = read_parameters(item, f"Input {name!r}")
        data = item.get("data")
        if data is None or _SIZE in parameters:
            tensor = Tensor(name, datatype, shape, self._take(name, data, parameters), parameters)
            tensor.shape = whole_shape(tensor)
            check(tensor)
            return tensor
        is_array = type(data) not in _JSON_TYPES  # of `json_arrays`, which has checked its elements
        elements = data if is_array else _elements(name, datatype, data, any_text=self._as_mlserver)
        tensor = Tensor(name, datatype, shape, elements, parameters)
        tensor.shape = whole_shape(tensor)
        wanted = checked_count(name, tensor.shape)
        if len(elements) != wanted and not (self._as_mlserver and datatype == "BYTES"):
            raise RowFailure(
                400, f"Input {name!r} has {len(elements)} elements; the shape {shown(shape)} needs {wanted}."
            )
        return tensor

    def check_end(self) -> None:
        left = len(self._binary) - self._taken
        if left:
            raise RowFailure(400, f"There are {left} bytes behind the data of the last input.")

    def _take(self, name: str, data: Any, parameters: dict[str, Any]) -> memoryview:
        if "shared_memory_region" in parameters:
            raise RowFailure(501, f"Input {name!r} lies in shared memory, {_WHERE}.")
        size = parameters.pop(_SIZE, None)
        if size is None:
            raise RowFailure(422, f'Input {name!r} must hold the list "data", or "{_SIZE}" among its parameters.')
        if type(size) is not int or size < 0:
            raise RowFailure(422, f'Input {name!r} has the "{_SIZE}" {size!r}; it must be an integer of at least 0.')
        if data is not None:
            raise RowFailure(422, f'Input {name!r} has both "data" and "{_SIZE}"; it must have one of them.')
        end = self._taken + size
        if end > len(self._binary):
            left = len(self._binary) - self._taken
            raise RowFailure(
                400,
                f"Input {name!r} announces {size} bytes of binary data; {left} are left behind the JSON, whose length "
                "the header Inference-Header-Content-Length must give.",
            )
        part = self._binary[self._taken : end]
        self._taken = end
        return part


def _shape(name: str, shape: Any, *, least: int) -> list[int]:
    if type(shape) is not list or not all(type(size) is int and least <= size < 2**64 for size in shape):
        given = shown(shape) if type(shape) is list else kind_of(shape)
        raise RowFailure(
            422, f'Input {name!r} must have a list of integers of at least {least} as "shape", it has {given[:100]}.'
        )
    return shape


def _elements(name: str, datatype: str, given: Any, *, any_text: bool) -> list[Any]:
    """Return data, nested or flat, as the flat list of elements of that datatype."""
    data: list[Any] = given if type(given) is list else [given]  # a single element is what MLServer takes, too
    while data and type(data[0]) is list:
        if any(type(each) is not list for each in data):
            raise RowFailure(400, f"The data of input {name!r} are nested unevenly.")
        data = list(chain.from_iterable(data))
    kinds = set(map(type, data))
    if datatype in FLOATS and kinds <= _NUMBERS:
        return data
    if any_text and datatype == "BYTES":
        return data
    allowed = _ALLOWED[datatype]
    if not kinds <= allowed:
        wrong = next(each for each in data if type(each) not in allowed)
        raise RowFailure(400, f"Input {name!r} holds {kind_of(wrong)}, which is no {datatype}.")
    if datatype in FLOATS:
        return [math.nan if each is None else each for each in data]
    if datatype == "BYTES" or not data:
        return data
    low, high = BOUNDS.get(datatype, (0, 1))
    for extreme in (min(data), max(data)):
        if not low <= extreme <= high:
            raise RowFailure(400, f"Input {name!r} holds {extreme}; {datatype} goes from {low} to {high}.")
    return [bool(each) for each in data] if datatype == "BOOL" and int in kinds else data


def _outputs(outputs: Any) -> list[RequestedOutput]:
    if outputs is None:
        return []
    if type(outputs) is not list:
        raise RowFailure(422, f'The request\'s "outputs" must be a list, they are {kind_of(outputs)}.')
    requested = []
    for number, each in enumerate(outputs):
        name = each.get("name") if type(each) is dict else None
        if type(name) is not str:
            raise RowFailure(422, f'Requested output number {number} must be an object with a text as "name".')
        parameters = read_parameters(each, f"Requested output {name!r}")
        if "shared_memory_region" in parameters:
            raise RowFailure(501, f"Output {name!r} is wanted in shared memory, {_WHERE}.")
        if "classification" in parameters:
            raise RowFailure(501, f"Output {name!r} is wanted as classification, which this server does not support.")
        requested.append(RequestedOutput(name, parameters))
    return requested
