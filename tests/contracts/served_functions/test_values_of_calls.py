"""Values of calls between functions: each arrives as it was given, whatever it looks like."""

import dataclasses
import enum
import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field

from ts.contracts.served_functions.call_bodies import accepted_for, body_of, result_of
from ts.contracts.served_functions.call_values import CallValues
from ts.protocol.messages import InferRow
from ts.runtime.decoded_rows import read_row

FORMS = "ts.contracts.forms.form_bodies"
IMAGE = Image.new("RGB", (2, 1), (1, 2, 3))


@dataclasses.dataclass
class Box:
    width: float
    height: float = 1


class Named(BaseModel):
    the_name: str = Field(alias="theName")


class Color(enum.Enum):
    RED = "red"


def text(x: str) -> None: ...
def default_text(x: str = "default") -> None: ...
def optional_text(x: str | None = "default") -> None: ...
def limited_text(x: Annotated[str, Field(max_length=99)]) -> None: ...
def data(x: bytes = b"default") -> None: ...
def number(x: int | None = 5) -> None: ...
def anything(x: Any = 5) -> None: ...
def members(x: dict[str, int]) -> None: ...
def numbers(x: list[float]) -> None: ...
def box(x: Box, count: int = 1) -> None: ...
def classes(x: Named, color: Color, when: datetime, pair: tuple[int, str]) -> None: ...
def two_texts(x: str | None, y: str | None) -> None: ...
def data_and_number(x: bytes, count: int) -> None: ...
def array(x: NDArray[np.float32], name: str = "default") -> None: ...
def image(x: Image.Image, name: str = "", count: int | None = 3, box: Box | None = None) -> None: ...
def images(x: list[Image.Image]) -> None: ...


def arrives(function: Callable[..., Any], *given: Any, batched: bool = False, **named: Any) -> dict[str, Any]:
    """Return the values that a function gets of a call."""
    values = CallValues(function, batched=batched)
    content_type, body = body_of(values, inspect.signature(function).bind(*given, **named).arguments)
    return values.read(read_row(InferRow("j", [], content_type, body, None, False), forms=FORMS).data)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        *((text, each) for each in ("hello", "", "é\r\n\0", '{"x": 1}', '{"x": "y"}', " [1")),
        (default_text, ""),
        *((optional_text, each) for each in (None, "", "null", "5", "{half", '{"x": "y"}', '["x"]')),
        (limited_text, '{"x": "y"}'),
        *((data, each) for each in (b"", b"\0\xff\r\n", b'{"x": "1"}')),
        *((number, each) for each in (None, 7)),
        *((anything, each) for each in (None, "text", {"x": 1}, [1])),
        (members, {"x": 1}),
        (numbers, [1.5, float("inf")]),
        (box, Box(1.5, 2)),
    ],
)
def test_a_value_arrives_as_it_was_given(function: Callable[..., Any], given: Any) -> None:
    assert arrives(function, given)["x"] == given


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (box, (Box(1.5), 3)),
        (classes, (Named(theName="n"), Color.RED, datetime(2020, 1, 1, tzinfo=UTC), (1, "a"))),
        (two_texts, ('{"q": 1}', None)),
        (two_texts, ("5", "[1]")),
        (data_and_number, (b"\r\n--x\0\xff", 3)),
        (data_and_number, (b"", 3)),
    ],
)
def test_several_values_arrive_as_they_were_given(function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    assert tuple(arrives(function, *given).values()) == given


def test_files_and_arrays_arrive_as_they_were_given() -> None:
    found = arrives(image, IMAGE, "{x", None, box=Box(2))
    assert found["x"].tobytes() == IMAGE.tobytes()
    assert (found["name"], found["count"], found["box"]) == ("{x", None, Box(2))
    assert arrives(images, [IMAGE])["x"][0].tobytes() == IMAGE.tobytes()
    for given in (arrives(array, np.ones((2, 3), np.float32)), arrives(array, np.ones((2, 3), np.float32), "é")):
        assert (given["x"].dtype, given["x"].shape) == (np.float32, (2, 3))


def test_a_call_of_a_batched_function_has_the_values_of_one_request() -> None:
    def batched(texts: list[str], count: list[int] = [3]) -> list[str]: ...  # type: ignore[empty-body]  # noqa: B006

    assert arrives(batched, "one", batched=True) == {"texts": "one", "count": 3}
    assert arrives(batched, "one", count=4, batched=True) == {"texts": "one", "count": 4}


def returns(kind: Any, written: Any, media_type: str) -> Any:
    """Return the result of a function with this annotation, from an answer."""

    def function(x: str) -> None: ...

    function.__annotations__["return"] = kind
    return result_of(CallValues(function, batched=False), media_type, written)


def test_results_are_what_the_annotation_says() -> None:
    assert returns(str, "é".encode(), "text/plain; charset=utf-8") == "é"
    assert returns(str | None, b"null", "application/json") is None
    assert returns(bytes, b"\xff", "application/octet-stream") == b"\xff"
    assert returns(tuple[int, Box], b'[1, {"width": 2}]', "application/json") == (1, Box(2))
    assert returns(Any, b'{"a": [1]}', "application/json") == {"a": [1]}
    with pytest.raises(ValueError, match=r"does not fit its annotation: .*valid integer"):
        returns(int, b'"x"', "application/json")


def test_arrays_are_asked_for_as_files() -> None:
    assert accepted_for(CallValues(array, batched=False)) == "*/*"

    def made(x: int) -> NDArray[np.float32]: ...  # type: ignore[empty-body]

    assert accepted_for(CallValues(made, batched=False)) == "application/x-npy"
