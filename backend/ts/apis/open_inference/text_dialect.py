"""The text form of ``generate`` and ``generate_stream``: ``{"text_input": …}`` to ``{"text_output": …}``.

It is the Open Inference Protocol's generate API together with Triton's: a member that has the name of one of the
model's inputs becomes that tensor, every other one a parameter of the request.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from ts.apis.open_inference.json_objects import read_id, read_parameters
from ts.apis.open_inference.json_request import read_request
from ts.apis.open_inference.json_response import json_elements, selected_outputs, to_json
from ts.apis.open_inference.types import InferenceRequest, InferenceResponse
from ts.jobs.errors import RowFailure

TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"
_NO_BINARY: Final = memoryview(b"")
_OWN_MEMBERS: Final = frozenset(("id", TEXT_INPUT, "parameters"))


def read_text_request(
    document: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], job_id: str
) -> InferenceRequest:
    """Return the request of ``text_input`` and its neighbours. Raises Failure: an input cannot take its value."""
    text = document.get(TEXT_INPUT)
    if type(text) is not str and not (type(text) is list and text and all(type(each) is str for each in text)):
        raise RowFailure(422, f'"{TEXT_INPUT}" must be a text.')
    by_name = {each["name"]: each for each in inputs}
    given: dict[str, Any] = {_text_input_name(inputs): text}
    parameters: dict[str, Any] = {}
    extra = {name: value for name, value in document.items() if name not in _OWN_MEMBERS and value is not None}
    for name, value in (*extra.items(), *read_parameters(document, "The request").items()):
        (given if name in by_name else parameters)[name] = value
    tensors = [_input(name, value, by_name.get(name)) for name, value in given.items()]
    members = {"id": read_id(document), "parameters": parameters, "inputs": tensors}
    return read_request(members, _NO_BINARY, job_id)


def write_text_response(request: InferenceRequest, response: InferenceResponse, *, with_id: bool) -> bytes:
    """Return a response as one line of JSON. Raises Failure: JSON cannot represent an output."""
    members: dict[str, Any] = {"id": response.id or request.id} if with_id else {}
    members["model_name"] = response.model_name
    if response.model_version:
        members["model_version"] = response.model_version
    outputs = selected_outputs(request, response)
    texts = [output.name for output in outputs if output.datatype == "BYTES"]
    renamed = texts[0] if len(texts) == 1 and TEXT_OUTPUT not in texts else None
    for output in outputs:
        elements = json_elements(output)
        name = TEXT_OUTPUT if output.name == renamed else output.name
        members[name] = elements[0] if len(elements) == 1 else elements
    for name, value in response.parameters.items():
        if name != "headers" and value is not None:
            members.setdefault(name, value)
    return to_json(members)


def _text_input_name(inputs: Sequence[Mapping[str, Any]]) -> str:
    names = [each["name"] for each in inputs if each["datatype"] == "BYTES"]
    if not inputs or TEXT_INPUT in names:
        return TEXT_INPUT
    if len(names) == 1:
        name: str = names[0]
        return name
    raise RowFailure(
        400,
        f'"{TEXT_INPUT}" has no input to go to: the model has {len(names)} inputs of BYTES, and none of that name. '
        'Name its inputs in the form {"inputs": [{"name", "shape", "datatype", "data"}]}.',
    )


def _input(name: str, value: Any, declared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return one input in the form of an inference request; its shape follows from the declared one."""
    data = value if type(value) is list else [value]
    if declared is None:
        return {"name": name, "datatype": "BYTES", "shape": [len(data)], "data": data}
    shape = [int(size) for size in declared["shape"]]
    fixed = prod([size for size in shape if size >= 0])
    if fixed and len(data) % fixed:
        raise RowFailure(400, f"Input {name!r} has {len(data)} elements, which do not fill its shape {shape}.")
    rest = len(data) // fixed if fixed else 0
    for place in range(len(shape) - 1, -1, -1):
        if shape[place] < 0:
            shape[place], rest = rest, 1
    return {"name": name, "datatype": declared["datatype"], "shape": shape, "data": data}
