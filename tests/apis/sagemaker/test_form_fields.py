"""Finding one field of a form."""

import pytest

from torchserve_py.apis.sagemaker.form_fields import FORM_TYPE, MAX_PARTS, form_field
from torchserve_py.endpoints.failures import EndpointError

MULTIPART = "multipart/form-data; boundary=b"


def part(name: str, value: str, more: str = "") -> bytes:
    return f'\r\n--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}'.encode()


END = b"\r\n--b--\r\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"model_name=a", "a"),
        (b"x=1&model_name=a+b%20c&y=2", "a b c"),
        (b"model_name=&model_name=b", "b"),
        (b"x_model_name=a", None),
        (b"x_model_name=a&model_name=b", "b"),
        (b"model_name=&" * MAX_PARTS + b"model_name=b", None),
        (b"model_name", None),
        (b"", None),
        (b"model_name=%FF", "\ufffd"),
        (b"&" * 1000 + b"model_name=a", "a"),
    ],
)
def test_a_field_of_an_encoded_form(body: bytes, expected: str | None) -> None:
    assert form_field(f"{FORM_TYPE}; charset=utf-8", body, "model_name") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (part("model_name", "a") + END, "a"),
        (part("model_name", "a")[2:] + END, "a"),
        (b"preamble" + part("x", "model_name") + part("model_name", "ä") + END, "ä"),
        (part("model_name", "") + part("model_name", "b") + END, "b"),
        (part("x", '--b; name="model_name"') + END, None),
        (part("file", "\0" * 5000, '; filename="model_name"') + part("model_name", "a") + END, "a"),
        (b"--b--\r\n", None),
    ],
)
def test_a_field_of_a_multipart_form(body: bytes, expected: str | None) -> None:
    assert form_field(MULTIPART, body, "model_name") == expected


@pytest.mark.parametrize(
    ("content_type", "body", "message"),
    [
        ("multipart/form-data", b"", "must name its boundary"),
        (MULTIPART, b"", "does not hold its boundary"),
        (MULTIPART, part("model_name", "a"), "has no end"),
        (MULTIPART, part("x" * 5000, "a") + END, "within 4096 bytes"),
        (MULTIPART, part("x", "") * MAX_PARTS + part("model_name", "a") + END, "among the first 100"),
    ],
)
def test_an_unusable_form_is_refused(content_type: str, body: bytes, message: str) -> None:
    with pytest.raises(EndpointError, match=message):
        form_field(content_type, body, "model_name")
