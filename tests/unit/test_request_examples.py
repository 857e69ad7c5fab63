"""The examples in the curl that `torchserve-py serve` prints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from torchserve_py.contracts.served_functions.request_examples import tensors_of
from ts.contracts.served_functions.json_examples import example_of


class Inner(BaseModel):
    kind: Literal["a", "b"]
    values: list[float]
    left_out: int = 3


class Outer(BaseModel):
    inner: Inner
    maybe: str | None
    count: Annotated[int, Field(ge=5)]
    shown: Annotated[str, Field(examples=["such"])]
    by_name: dict[str, int]
    pair: Annotated[list[bool], Field(min_length=2)]
    again: Outer | None = None


@pytest.mark.parametrize("kind", [str, int, float, bool, list[int], dict[str, str], Any, int | None, Inner, Outer])
def test_an_example_is_what_the_schema_allows(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    adapter.validate_python(example_of(adapter.json_schema()))


def test_an_example_is_short_and_takes_what_the_schema_proposes() -> None:
    assert example_of(TypeAdapter(Outer).json_schema()) == {
        "inner": {"kind": "a", "values": [0.5]},
        "maybe": "hello",
        "count": 5,
        "shown": "such",
        "by_name": {},
        "pair": [True, True],
    }


def test_a_schema_that_holds_itself_has_an_end() -> None:
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
    assert isinstance(example_of(schema), list)


def test_declared_tensors_become_a_request() -> None:
    inputs = [
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
        {"name": "numbers", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "yes", "datatype": "BOOL", "shape": [1]},
    ]
    assert tensors_of(inputs) == {
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]},
            {"name": "numbers", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.5]},
            {"name": "yes", "datatype": "BOOL", "shape": [1], "data": [True]},
        ]
    }
    assert tensors_of([{"name": "image", "datatype": "FP32", "shape": [3, 224, 224]}]) is None
    assert tensors_of([{"name": "deep", "datatype": "FP32", "shape": [2**62 - 1] * 300_000}]) is None
    assert tensors_of([]) is None
