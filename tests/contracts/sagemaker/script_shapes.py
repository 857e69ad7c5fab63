"""Models with the scripts of `script_texts`, each with requests and the answers that SageMaker's toolkit gives."""

import base64
import io
import json
import wave
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tests.contracts.sagemaker.script_texts import (
    CONTEXT,
    DETECTION,
    FORECAST,
    GENERATION,
    HUGGING_FACE,
    JSON_LINES,
    LIFE,
    MIXED_CONTEXT,
    NO_MODEL_FN,
    OWN_MODULES,
    PANDAS,
    RECOMMENDER,
    SEVERAL_TYPES,
    SPEECH,
    STATE_DICT,
    STATUSES,
    TABULAR,
    TEXT,
    TOOLKIT_CODERS,
    TRANSFORM_ALONE,
    VISION,
)


class Exchange(NamedTuple):
    """A request, and its answer. An ``answer`` of bytes is the body; anything else is what its JSON says."""

    content_type: str | None
    body: bytes
    answer: Any
    accept: str | None = None
    answer_type: str | None = "application/json"
    status: int = 200


@dataclass(frozen=True)
class Shape:
    """The files of a model, relative to its folder, and exchanges with it."""

    files: Mapping[str, str]
    exchanges: list[Exchange]
    torch_model: bool = False  # whether model.pt doubles three numbers
    needs: tuple[str, ...] = field(default=())


def script(text: str) -> dict[str, str]:
    return {"code/inference.py": text}


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (4, 2), (255, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def second_of_sound() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(16000))
    return buffer.getvalue()


JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"

SHAPES = {
    "default_handlers": Shape(
        script("import os\n"),
        [
            Exchange(JSON, b"[[1, 2, 3]]", [[2.0, 4.0, 6.0]]),
            Exchange("application/json; charset=utf-8", b"[[1, 2, 3]]", [[2.0, 4.0, 6.0]]),
            Exchange(CSV, b"1,2,3\n4,5,6.5\n", [[2.0, 4.0, 6.0], [8.0, 10.0, 13.0]]),
            Exchange(
                "text/csv; charset=utf-16", "1,2,3\n4,5,6\n".encode("utf-16"), [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
            ),
            Exchange(
                "application/json; charset=utf-9",
                b"[]",
                b"Header Content-Type: 'application/json; charset=utf-9'",
                None,
                None,
                415,
            ),
            Exchange(CSV, b"\xff", b"The body is not text in the charset", None, None, 400),
            Exchange(NPY, npy(np.ones((1, 3))), [[2.0, 2.0, 2.0]]),
            Exchange(JSON, b"[[1, 2, 3]]", b"2.0,4.0,6.0\n", accept=CSV, answer_type=CSV),
            Exchange(JSON, b"[[1, 2, 3]]", [[2.0, 4.0, 6.0]], accept="text/html, application/json;q=0.9"),
            Exchange("text/xml", b"<a/>", b"Content type text/xml is not supported", None, None, 415),
            Exchange(JSON, b"[[1, 2, 3]]", b"Content type text/html is not supported", "text/html", None, 406),
            Exchange(JSON, b"[[1, 2", b"The body is no array in application/json", None, None, 400),
        ],
        torch_model=True,
        needs=("torch",),
    ),
    "hugging_face": Shape(
        {**script(HUGGING_FACE), "vocab.json": '{"good": 1, "bad": 2}'},
        [
            Exchange(JSON, b'{"inputs": "a good film"}', [{"label": "POSITIVE", "score": 0.982}]),
            Exchange(JSON, b'{"inputs": "BAD"}', [{"label": "NEGATIVE", "score": 0.982}]),
            Exchange("text/plain", b"good", b"Unsupported content type: text/plain\n", None, None, 500),
        ],
        needs=("torch",),
    ),
    "vision": Shape(
        script(VISION),
        [Exchange("application/x-image", b"png", {"means": [1.0, 0.0, 0.0]})],
        needs=("torch", "PIL"),
    ),
    "transform_alone": Shape(
        script(TRANSFORM_ALONE),
        [
            Exchange("application/octet-stream", b"\x00\xff", {"bytes": 2}),
            Exchange(None, b"\x00", {"bytes": 1}),
            Exchange("image/png", b"", b"Content type must be application/octet-stream.", None, None, 500),
        ],
    ),
    "tabular": Shape(
        {**script(TABULAR), "coefficients.json": "[1, 10]"},
        [
            Exchange(CSV, b"1,2\n3,4\n", {"instances": [{"features": 21.0}, {"features": 43.0}]}),
            Exchange(CSV, b"1,2\n3,4\n", b"21.0\n43.0", accept=CSV, answer_type=CSV),
        ],
    ),
    "pandas": Shape(script(PANDAS), [Exchange(CSV, b"age,fare\n1,2\n3,4\n", [3.0, 8.0])], needs=("pandas",)),
    "json_lines": Shape(
        script(JSON_LINES),
        [
            Exchange(
                "application/jsonlines",
                b'{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n',
                b'{"id": 1, "text": "A"}\n{"id": 2, "text": "B"}\n',
                answer_type="application/jsonlines",
            )
        ],
    ),
    "toolkit_coders": Shape(
        script(TOOLKIT_CODERS),
        [
            Exchange(NPY, npy(np.arange(2.0)), npy(np.array([0.0, 10.0])), accept=NPY, answer_type=NPY),
            Exchange(CSV, b"1,2\n", b"10\n20\n", accept=CSV, answer_type=CSV),
            Exchange(JSON, b"[1, null]".replace(b"null", b"2"), [10, 20]),
        ],
    ),
    "context": Shape(
        script(CONTEXT),
        [Exchange(JSON, b'{"a": 1}', {"tenant": None, "a": 1, "device": None}, None, "application/vnd.forecast+json")],
    ),
    "mixed_context": Shape(script(MIXED_CONTEXT), [Exchange(JSON, b"0", ["Context", "Context"])]),
    "no_model_fn": Shape(
        script(NO_MODEL_FN),
        [Exchange(JSON, b'{"values": [[1, 2, 3]]}', [[2.0, 4.0, 6.0]])],
        torch_model=True,
        needs=("torch",),
    ),
    "own_modules": Shape(OWN_MODULES, [Exchange(CSV, b"1,5", ["low", "high"])]),
    "statuses": Shape(
        script(STATUSES),
        [
            Exchange(CSV, b"1", b"Content type text/csv is not supported", None, None, 415),
            Exchange(JSON, b'"0123456789"', b"at most 10 characters\n", None, None, 413),
            Exchange(JSON, b"[]", b"no rows\n", None, None, 400),
            Exchange(JSON, '"é"'.encode(), "unbekanntes Wort: é, 日本\n".encode(), None, None, 500),
            Exchange(JSON, b"1", b"Invalid Request\n", None, None, 500),
            Exchange(JSON, b"2", b"Untellable\nTraceback", None, None, 500),
        ],
    ),
    "text": Shape(
        script(TEXT), [Exchange("text/plain", b"abc", b"cba", accept="text/plain", answer_type="text/plain")]
    ),
    "speech": Shape(script(SPEECH), [Exchange("audio/x-wav", second_of_sound(), {"seconds": 1.0, "text": ["hello"]})]),
    "life": Shape(
        script(LIFE),
        [
            Exchange(None, b"", ["pre", "model", "warm", "call"]),
            Exchange(None, b"", ["pre", "model", "warm", "call", "call"]),
        ],
    ),
    "generation": Shape(
        script(GENERATION),
        [
            Exchange(JSON, b'{"inputs": "tra", "parameters": {"max_new_tokens": 1}}', [{"generated_text": "tra la"}]),
            Exchange(JSON, b'{"inputs": ["a", "b"]}', [{"generated_text": f"{each} la la"} for each in "ab"]),
        ],
        needs=("torch",),
    ),
    "detection": Shape(
        script(DETECTION),
        [Exchange(JSON, b"png in json", [{"box": [0, 0, 4, 2], "score": 0.5, "label": "red"}])],
        needs=("PIL",),
    ),
    "forecast": Shape(
        script(FORECAST),
        [
            Exchange(
                JSON,
                b'{"instances": [{"start": "2026", "target": [1, 3]}], "configuration": {"prediction_length": 2}}',
                {"predictions": [{"mean": [2.0, 2.0]}]},
            )
        ],
    ),
    "recommender": Shape(
        {**script(RECOMMENDER), "neighbours.json": '{"ann": [3, 1]}'},
        [
            Exchange(JSON, b'{"user": "ann"}', {"user": "ann", "items": [3, 1]}),
            Exchange(JSON, b'{"user": "bob"}', {"user": "bob", "items": None}),
        ],
        needs=("torch",),
    ),
    "state_dict": Shape(STATE_DICT, [Exchange(NPY, npy(np.ones((1, 2, 1))), [[3.0]])], needs=("torch",)),
    "several_types": Shape(
        script(SEVERAL_TYPES),
        [
            Exchange(JSON, b'{"instances": [[1, 2], [3, 4]]}', {"predictions": [3, 7]}),
            Exchange(CSV, b"1,2\n", {"predictions": [3.0]}),
            Exchange(NPY, npy(np.ones((1, 2))), {"predictions": [2.0]}),
        ],
    ),
}


def body_of(exchange: Exchange) -> bytes:
    """Return a request's body; pictures are made only if Pillow is there."""
    if exchange.body == b"png":
        return png()
    if exchange.body == b"png in json":
        return json.dumps({"image": base64.b64encode(png()).decode()}).encode()
    return exchange.body
