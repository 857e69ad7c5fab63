"""What a handler's author declares of its inputs and outputs, for clients of the Open Inference Protocol."""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from ts.open_inference.datatypes import DATATYPES

TENSORS_EXPECTED: Final = (
    "a list of one or more tensors, each with a name of its own, a datatype and a shape (-1: any size), for example "
    "[{name: image, datatype: FP32, shape: [-1, 3, 224, 224]}]"
)
_MAX_SIZE: Final = 2**63 - 1


class TensorDeclaration(TypedDict):
    """One input or output; -1 in its shape stands for any size."""

    name: str
    datatype: str
    shape: list[int]


def are_tensors(value: object) -> bool:
    """Return whether a value is a list of tensors, each with a name of its own."""
    if not isinstance(value, list) or not value or not all(map(_is_tensor, value)):
        return False
    return len({each["name"] for each in value}) == len(value)


def _is_tensor(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"name", "datatype", "shape"}:
        return False
    shape = value["shape"]
    return (
        isinstance(value["name"], str)
        and value["name"] != ""
        and isinstance(value["datatype"], str)
        and value["datatype"] in DATATYPES
        and isinstance(shape, list)
        and all(type(size) is int and -1 <= size <= _MAX_SIZE for size in shape)
    )
