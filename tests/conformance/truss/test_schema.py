"""Row 67: what a Truss's annotations say of what it takes and gives."""

from typing import Any

import pytest
from tests.conformance.truss.serving import Serving, Truss, is_error

TRUSSES = {
    name.lower(): Truss(f"typed:{name}")
    for name in ("Typed", "Text", "Stream", "Waiting", "EitherSync", "EitherAsync", "Outer")
}
TRUSSES["plain"] = Truss("basics:Echo")


def model_schema(title: str, field: str) -> dict[str, Any]:
    return {
        "properties": {field: {"title": field.capitalize(), "type": "string"}},
        "required": [field],
        "title": title,
        "type": "object",
    }


PROMPT = model_schema("Prompt", "prompt")
COMPLETION = model_schema("Completion", "text")


@pytest.mark.parametrize(
    ("name", "output", "streams"),
    [
        ("typed", COMPLETION, False),
        ("stream", None, True),
        ("waiting", COMPLETION, False),
        ("eithersync", COMPLETION, True),
        ("eitherasync", COMPLETION, True),
        ("outer", COMPLETION, False),
    ],
)
def test_row_67_a_schema(name: str, output: Any, streams: bool, serving: Serving) -> None:
    response = serving.get(name, "/schema")
    assert response.status_code == 200
    assert response.json() == {"input_schema": PROMPT, "output_schema": output, "supports_streaming": streams}


@pytest.mark.parametrize("name", ["plain", "text"])
def test_row_67_no_schema(name: str, serving: Serving) -> None:
    assert is_error(serving.get(name, "/schema"), 404, 600) == "No schema found"
