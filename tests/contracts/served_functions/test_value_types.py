"""Images, sound, arrays and tensors as parameters and results; examples and tensors that follow from a signature."""

import base64
import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field

from ts.contracts.served_functions.call_values import CallValues, InvalidValue
from ts.jobs.errors import LoadError
from ts.utils.sound import Audio


def png(size: tuple[int, int] = (3, 2)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "red").save(out, "PNG")
    return out.getvalue()


def wav(width: int, frames: bytes, channels: int = 1) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(frames)
    return out.getvalue()


def sized(picture: Image.Image) -> list[int]:
    return list(picture.size)


@pytest.mark.parametrize(
    "body",
    [
        bytearray(png()),
        base64.b64encode(png()).decode(),
        "data:image/png;base64," + base64.b64encode(png()).decode(),
    ],
)
def test_an_image_comes_as_a_file_or_in_base64(body: Any) -> None:
    values = CallValues(sized, batched=False)
    assert values.read({"body": body})["picture"].size == (3, 2)
    assert values.declared["takes"] == "image/png"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (bytearray(b"GIF89a, but no more"), "picture: Value error, it is not an image that can be read"),
        ("no base64!", "a text stands for a file only if it is base64"),
        ([1, 2], "a file is wanted, as bytes or in base64; it is list"),
    ],
)
def test_what_is_not_an_image_is_refused_with_the_reason(body: Any, told: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        CallValues(sized, batched=False).read({"body": body})
    assert told in str(refused.value)


def test_an_image_among_other_values_is_a_field_of_a_form_or_base64() -> None:
    def crop(picture: Image.Image, width: int, more: list[Image.Image] | None = None) -> Image.Image:
        return picture

    values = CallValues(crop, batched=False)
    text = base64.b64encode(png()).decode()
    assert values.read({"picture": bytearray(png()), "width": "2"})["picture"].size == (3, 2)
    read = values.read({"body": {"picture": text, "width": 2, "more": [text]}})
    assert (read["picture"].size, read["width"], read["more"][0].size) == ((3, 2), 2, (3, 2))
    assert (values.declared["takes"], values.declared["gives"]) == ("application/json", "image/png")
    body, media_type = values.written(read["picture"])
    assert (Image.open(io.BytesIO(body)).size, media_type) == ((3, 2), "image/png")


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        (wav(2, np.array([0, 16384, -32768], "<i2").tobytes()), [0.0, 0.5, -1.0]),
        (wav(1, bytes([128, 192, 0])), [0.0, 0.5, -1.0]),
        (wav(3, b"\x00\x00\x00" + b"\x00\x00\x40" + b"\x00\x00\x80"), [0.0, 0.5, -1.0]),
        (wav(2, np.array([16384, 0], "<i2").tobytes(), channels=2), [[0.5, 0.0]]),
    ],
)
def test_sound_comes_as_a_file_with_any_width_of_samples(data: bytes, samples: list[Any]) -> None:
    def hear(sound: Audio) -> Audio:
        return sound

    values = CallValues(hear, batched=False)
    sound = values.read({"body": bytearray(data)})["sound"]
    assert (sound.samples.tolist(), sound.samples.dtype, sound.rate) == (samples, np.float32, 8000)
    body, media_type = values.written(sound)
    again = Audio.from_bytes(body)
    assert (again.rate, media_type) == (8000, "audio/wav")
    np.testing.assert_allclose(again.samples, sound.samples, atol=1e-4)
    with pytest.raises(InvalidValue, match="it is not a"):
        values.read({"body": bytearray(b"RIFF")})


@pytest.mark.parametrize(("body", "what"), [(b"", "empty"), ("", "empty"), ("x", "text"), (b"5", "text")])
def test_a_text_is_no_array_of_any_type(body: Any, what: str) -> None:
    def total(values: np.ndarray) -> Any:
        return values.sum()

    for given in ({"body": body}, {"values": body}):
        with pytest.raises(InvalidValue, match=rf"values: .*: it is {what}; send JSON such as \[1, 2\]"):
            CallValues(total, batched=False).read(given)
    assert CallValues(total, batched=False).read({"body": b"[1, 2]"})["values"].tolist() == [1, 2]


def test_arrays_come_as_lists_or_in_the_format_of_numpy() -> None:
    def total(numbers: NDArray[np.float32]) -> float:
        return float(numbers.sum())

    def scaled(tensor: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return tensor * by

    values = CallValues(total, batched=False)
    out = io.BytesIO()
    np.save(out, np.ones((2, 2)))
    for body in ([[1, 1], [1, 1]], "[[1, 1], [1, 1]]", bytearray(out.getvalue())):
        read = values.read({"body": body})["numbers"]
        assert (read.tolist(), read.dtype) == ([[1.0, 1.0], [1.0, 1.0]], np.float32)
    with pytest.raises(InvalidValue):
        values.read({"body": [[1], [1, 2]]})
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidValue):
        values.read({"body": bytearray(pickled.getvalue())})
    assert CallValues(scaled, batched=False).read({"body": {"tensor": [1.5]}})["tensor"].tolist() == [1.5]


class Query(BaseModel):
    text: str = Field(min_length=12)
    top: Annotated[int, Field(gt=0, multiple_of=5)]
    mode: Literal["fast", "exact"]


@dataclass
class Point:
    x: float
    y: tuple[int, str]


@pytest.mark.parametrize("kind", [Query, Point, list[Point], dict[str, int], Image.Image, Audio, NDArray[Any], bool])
def test_a_signature_without_an_example_has_one_that_it_accepts(kind: Any) -> None:
    def model(value: Any) -> None: ...

    model.__annotations__["value"] = kind
    values = CallValues(model, batched=False)
    assert "value" in values.read({"body": values.declared["example"]})


def test_a_pattern_has_no_example_unless_one_is_given() -> None:
    def call(number: Annotated[str, Field(pattern=r"^\d{3}$")]) -> str:
        return number

    assert "example" not in CallValues(call, batched=False).declared
    assert CallValues(call, batched=False, example="112").declared["example"] == "112"
    with pytest.raises(LoadError, match="the example of call is not a request that it takes: number: String should"):
        CallValues(call, batched=False, example="police")


@pytest.mark.parametrize(
    ("function", "inputs", "outputs"),
    [
        (sized, [["picture", "BYTES", [1]]], [["output", "INT64", [-1]]]),
        (lambda: 1, [], []),
    ],
)
def test_tensors_follow_from_the_signature(function: Callable[..., Any], inputs: Any, outputs: Any) -> None:
    values = CallValues(function, batched=False)
    assert [list(each.values()) for each in values.inputs] == inputs
    assert [list(each.values()) for each in values.outputs] == outputs


def test_each_parameter_is_a_tensor_unless_one_cannot_be() -> None:
    def both(rows: list[list[float]], flags: NDArray[np.bool_], top: int | None = None) -> list[str]:
        return []

    def neither(query: Query, top: int) -> NDArray[Any]:
        return np.zeros(1)

    values = CallValues(both, batched=False)
    assert [list(each.values()) for each in values.inputs] == [
        ["rows", "FP64", [-1, -1]],
        ["flags", "BOOL", [-1]],
        ["top", "INT64", [1]],
    ]
    assert values.outputs == [{"name": "output", "datatype": "BYTES", "shape": [-1]}]
    values = CallValues(neither, batched=False)
    assert (values.inputs, values.outputs) == ([], [])
    values.check_names(["query"])
    with pytest.raises(InvalidValue, match="there is no input 'text'; the inputs are: query, top"):
        values.check_names(["query", "text"])
