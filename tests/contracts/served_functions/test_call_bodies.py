"""What a call of another function sends, as its worker reads it, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import BaseModel

from ts.contracts.served_functions.call_bodies import accepted_for, body_of, result_of
from ts.contracts.served_functions.call_values import CallValues
from ts.protocol.messages import InferRow
from ts.runtime.decoded_rows import read_row


class Point(BaseModel):
    x: float
    y: float = 0.0


@dataclass
class Box:
    width: float


def text(text: str) -> str: ...
def texts(texts: list[str]) -> list[str]: ...
def data(data: bytes) -> bytes: ...
def number(number: float) -> float: ...
def point(point: Point) -> Point: ...
def box(box: Box) -> Box: ...
def anything(value): ...  # type: ignore[no-untyped-def]
def array(values: np.ndarray) -> np.ndarray: ...
def tensor(values: torch.Tensor) -> torch.Tensor: ...
def image(picture: Image.Image) -> Image.Image: ...
def pair(text: str, count: int = 2, extra: list[float] | None = None) -> tuple[str, int]: ...
def files(data: bytes, values: np.ndarray, text: str, point: Point) -> dict[str, Any]: ...
def optional(text: str = "you") -> str: ...


def read(function: Callable[..., Any], *given: Any, batched: bool = False, **named: Any) -> dict[str, Any]:
    """Return the arguments with which the called function is called."""
    values = CallValues(function, batched=batched)
    content_type, body = body_of(values, signature(function).bind(*given, **named).arguments)
    row = read_row(InferRow("j", (), content_type, body, None, False), forms="ts.contracts.forms.form_bodies")
    return values.read(row.data)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (text, "grüße"),
        (text, '{"text": "json"}'),
        (text, "[1"),
        (text, ""),
        (data, b"\x00\xff"),
        (number, 0.5),
        (number, float("inf")),
        (point, Point(x=1, y=2)),
        (box, Box(2.5)),
        (anything, {"a": [1, None]}),
        (anything, None),
    ],
)
def test_one_value_arrives_as_it_was(function: Callable[..., Any], value: Any) -> None:
    ((_, got),) = read(function, value).items()
    assert got == value


def test_of_a_batched_function_one_request_is_called() -> None:
    assert read(texts, "hello", batched=True) == {"texts": "hello"}
    assert read(texts, texts="hello", batched=True) == {"texts": "hello"}


def test_arrays_keep_their_type_and_images_their_pixels() -> None:
    got = read(array, np.array([[1, 2]], np.float32))["values"]
    assert (got.dtype, got.tolist()) == (np.float32, [[1, 2]])
    assert read(tensor, torch.tensor([1, 2], dtype=torch.int16))["values"].dtype == torch.int16
    assert read(image, Image.new("RGB", (2, 1), (1, 2, 3)))["picture"].getpixel((1, 0)) == (1, 2, 3)


def test_several_values_are_json_or_a_form() -> None:
    assert read(pair, "a", extra=[np.float32(0.5)]) == {"text": "a", "count": 2, "extra": [0.5]}
    got = read(files, b"\r\n--x", np.array([1.5]), "text", Point(x=1))
    assert (got["data"], got["values"].tolist(), got["text"], got["point"]) == (b"\r\n--x", [1.5], "text", Point(x=1))


def test_what_is_left_out_has_its_default() -> None:
    assert read(optional) == {"text": "you"}
    assert read(optional, "") == {"text": ""}


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (text, "grüße"),
        (data, b"\x00"),
        (number, 2.5),
        (point, Point(x=1)),
        (box, Box(2.5)),
        (pair, ("a", 2)),
        (anything, {"a": 1}),
    ],
)
def test_a_result_arrives_as_its_annotation_says(function: Callable[..., Any], result: Any) -> None:
    assert answered(function, result) == result


def answered(function: Callable[..., Any], result: Any) -> Any:
    """Return what the caller gets for a result."""
    from ts.runtime.result_bodies import encode_body

    values = CallValues(function, batched=False)
    written, content_type = values.written(result)
    return result_of(values, content_type, bytes(encode_body(written)))


def test_an_array_comes_as_a_file_and_an_image_as_an_image() -> None:
    from ts.contracts.served_functions.value_types import ARRAY_FILE, array_file

    values = CallValues(array, batched=False)
    assert (accepted_for(values), accepted_for(CallValues(text, batched=False))) == (ARRAY_FILE, "*/*")
    assert result_of(values, ARRAY_FILE, array_file(np.array([1], np.int8))).dtype == np.int8
    assert answered(array, np.array([1.5])).tolist() == [1.5]
    assert answered(image, Image.new("RGB", (3, 1))).size == (3, 1)


def test_a_result_that_does_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match="the result does not fit its annotation: Input should be a valid number"):
        answered(number, "no number")
