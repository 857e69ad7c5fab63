"""Requests that a model accepts, from what it declares (`ts.protocol.messages.Loaded`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: More values than this are no example that a person would read.
_MAX_ELEMENTS: Final = 64
#: What a model declares may have more dimensions than arrays can have; to multiply very many takes minutes.
_MAX_DIMENSIONS: Final = 64


def declared_example(declared: Mapping[str, Any]) -> Any:
    """Return a request that fits what a function, a model of MLServer's or a Truss declares; None if none is known."""
    if (function := declared.get("function")) is not None:
        return function.get("example")
    if inputs := declared.get("inputs"):
        return tensors_of(inputs)
    return declared.get("example")


def declared_request(declared: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema of the requests that a function or a Truss declares; None if it declares none."""
    schema: Mapping[str, Any] | None
    if (function := declared.get("function")) is not None:
        schema = function["request"]
    else:
        schema = (declared.get("schema") or {}).get("input_schema")
    return schema or None


def tensors_of(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return an Open Inference request with the declared inputs; None if it would be too long to read."""
    shapes = [[size if size > 0 else 1 for size in each.get("shape") or (1,)] for each in inputs]
    if not inputs or any(len(shape) > _MAX_DIMENSIONS for shape in shapes):
        return None
    if sum(math.prod(shape) for shape in shapes) > _MAX_ELEMENTS:
        return None
    return {
        "inputs": [
            {
                "name": each["name"],
                "shape": shape,
                "datatype": each["datatype"],
                "data": [_element(str(each["datatype"]))] * math.prod(shape),
            }
            for each, shape in zip(inputs, shapes, strict=True)
        ]
    }


def _element(datatype: str) -> Any:
    if datatype in ("BYTES", "BOOL"):
        return "hello" if datatype == "BYTES" else True
    return 0.5 if datatype.startswith(("FP", "BF")) else 1
