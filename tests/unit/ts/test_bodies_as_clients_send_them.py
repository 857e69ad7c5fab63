"""Bodies that clients send in ways of their own: lines that end with LF, a preamble, types in capitals, two files."""

import json
from typing import Any

import pytest

from ts.apis.open_inference.receive import receive
from ts.jobs.errors import RowFailure
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow
from ts.runtime.decoded_rows import read_row

FORM = (
    b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\none\r\ntwo\r\n'
    b'--B\r\nContent-Disposition: form-data; name="f"; filename="x"\r\nContent-Type: text/plain\r\n\r\nfile\r\n'
    b"--B--\r\n"
)


def read(body: bytes, content_type: str = "multipart/form-data; boundary=B") -> Any:
    return read_row(InferRow("a", [], content_type, body, None, False), forms="ts.contracts.forms.form_bodies").data


@pytest.mark.parametrize("before", [b"", b"\r\n", b"This is a preamble.\r\n"])
def test_a_preamble_is_passed_over(before: bytes) -> None:
    assert read(before + FORM) == {"a": b"one\r\ntwo", "f": "file"}


def test_lines_may_end_with_lf() -> None:
    assert read(FORM.replace(b"\r\n", b"\n")) == {"a": b"one\ntwo", "f": "file"}


def test_two_files_of_one_field_both_reach_the_handler() -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="f"; filename="%b"\r\n\r\n%b\r\n'
    assert read(part % (b"1", b"one") + part % (b"2", b"two") + b"--B--\r\n") == {"f": [b"one", b"two"]}


def test_types_are_the_same_in_any_case() -> None:
    assert read(b"[1]", "APPLICATION/JSON; charset=utf-8") == {"body": [1]}
    assert read(b"hi", "Text/Plain") == {"body": "hi"}


def test_binary_tensors_without_the_length_of_their_json_are_told_the_header() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
    body = json.dumps({"inputs": [tensor]}).encode() + b"\0\0\x80?"
    with pytest.raises(RowFailure, match="Inference-Header-Content-Length"):
        receive(InferRow("a", [], "application/octet-stream", body, OPEN_INFERENCE_REST, False))
