"""What a caller hands in becomes the body of a request, and what comes out becomes a value."""

import base64
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import BaseModel

from torchserve_py.client import Answer, RequestFailed, StepFailed
from torchserve_py.client.request_body import body_of


class Box(BaseModel):
    width: float
    names: list[str] = []


@dataclass
class Point:
    x: int
    box: Box


@pytest.mark.parametrize(
    ("given", "body", "media_type"),
    [
        (b"raw", b"raw", "application/octet-stream"),
        (bytearray(b"raw"), b"raw", "application/octet-stream"),
        (memoryview(b"raw"), b"raw", "application/octet-stream"),
        ("größe", "größe".encode(), "text/plain; charset=utf-8"),
        (None, b"", "application/octet-stream"),
        ([1, 2, 3], b"[1,2,3]", "application/json"),
        ({"a": np.float32(0.5)}, b'{"a":0.5}', "application/json"),
        (np.arange(4, dtype="int8").reshape(2, 2), b"[[0,1],[2,3]]", "application/json"),
        (Box(width=1, names=["é"]), '{"width":1.0,"names":["é"]}'.encode(), "application/json"),
        (Point(1, Box(width=2)), b'{"x":1,"box":{"width":2.0,"names":[]}}', "application/json"),
        ([Box(width=1), (2,)], b'[{"width":1.0,"names":[]},[2]]', "application/json"),
        (0, b"0", "application/json"),
    ],
)
def test_bodies(given: Any, body: bytes, media_type: str) -> None:
    assert body_of(given) == (body, media_type)


def test_json_takes_texts_too() -> None:
    assert body_of(None, "text") == (b'"text"', "application/json")
    assert body_of(None, None) == (b"null", "application/json")
    with pytest.raises(TypeError, match="either a body or json="):
        body_of(b"raw", [1])


def test_what_json_cannot_represent_is_told() -> None:
    with pytest.raises(TypeError, match="a value of type object cannot be sent as JSON"):
        body_of([object()])


def answer(value: Any) -> Answer:
    return Answer(200, {"content-type": "application/json"}, json.dumps(value).encode())


def test_answers_come_out_as_the_type_that_is_asked_for() -> None:
    assert answer({"width": 1}).read(Box) == Box(width=1)
    assert answer({"x": 1, "box": {"width": 2}}).read(Point) == Point(1, Box(width=2))
    assert answer([1, 2]).read(list[float]) == [1.0, 2.0]
    array = answer([[1, 2]]).read(np.ndarray)
    assert (array.shape, array.tolist()) == ((1, 2), [[1, 2]])
    assert Answer(200, {}, b"text").read(str) == "text"
    assert answer("text").read(str) == "text"
    assert answer([]).read(bytes) == b"[]"
    with pytest.raises(ValueError, match="width"):
        answer({}).read(Box)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: net"}', "Model not found: net"),
        (b'{"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no net"}', "no net"),
        (b'{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b"plain words\n", "plain words"),
        (b"[1]", "[1]"),
        (b"", "the server answered 404 without a message"),
    ],
)
def test_a_failure_says_the_servers_message(body: bytes, message: str) -> None:
    failed = RequestFailed.of(404, "model_not_found", body)
    assert (str(failed), failed.message, failed.status, failed.cause) == (message, message, 404, "model_not_found")


def test_an_image_is_a_png_file_and_within_json_a_text() -> None:
    image = Image.new("RGB", (3, 2), (10, 20, 30))
    sent, kind = body_of(image)
    assert kind == "image/png"
    got = Answer(200, {}, sent).read(Image.Image)
    assert (got.size, got.getpixel((2, 1))) == ((3, 2), (10, 20, 30))
    within, kind = body_of({"image": image})
    assert (kind, base64.b64decode(json.loads(within)["image"])) == ("application/json", sent)
    assert body_of(Image.new("CMYK", (1, 1)))[0].startswith(b"\x89PNG")


def test_bytes_within_json_are_refused_with_a_way_out() -> None:
    with pytest.raises(TypeError, match="send them alone, or as a text in base64"):
        body_of({"image": b"..."})


def test_a_tensor_comes_out() -> None:
    assert torch.equal(Answer(200, {}, b"[[1.5, 2]]").read(torch.Tensor), torch.tensor([[1.5, 2.0]]))


def test_a_failure_has_the_problems_that_its_details_list() -> None:
    missing = {"type": "missing", "loc": ["number"], "msg": "Field required"}
    details = json.dumps({"title": "Unprocessable", "detail": "number is missing", "errors": [missing]}).encode()
    assert RequestFailed.of(422, "invalid_request", details).errors == [missing]
    assert list(RequestFailed.of(422, "", b'{"errors": "many"}').errors) == []


def test_a_failed_step_says_its_message() -> None:
    assert str(StepFailed(3, 503, "sequence_store", "The state cannot be read.")) == "The state cannot be read."
