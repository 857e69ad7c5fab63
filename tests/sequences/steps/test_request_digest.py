"""What makes two requests the same step: the values, and what they are for."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.conftest import KINDS
from tests.sequences.steps.served import Served
from tests.sequences.steps.stepping import step

from ts.context import RequestProcessor
from ts.protocol.messages import TRUSS, InferRow
from ts.sequences.steps.record import DIGEST_SIZE, digest_of_body
from ts.sequences.steps.request_digest import digest_of_request, digest_of_values

FORMS = "ts.contracts.forms.form_bodies"


def digest(
    body: Any, content_type: str | None = None, headers: Any = (), protocol: str | None = None, forms: str = FORMS
) -> bytes:
    sent = InferRow("j", headers, content_type, body, protocol, False)
    return digest_of_request(sent, RequestProcessor(None, headers, ()), forms, is_named=True)


def multipart(fields: dict[str, str], boundary: str) -> tuple[bytes, str]:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    ]
    return "".join([*parts, f"--{boundary}--\r\n"]).encode(), f"multipart/form-data; boundary={boundary}"


def test_a_form_is_the_same_with_another_boundary_and_another_order_of_fields() -> None:
    one, other = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert digest(*multipart(one, "first")) == digest(*multipart(other, "second"))
    assert digest(*multipart(one, "first")) != digest(*multipart({"a": "1", "b": "3"}, "first"))
    assert digest(*multipart(one, "first")) != digest(*multipart({"a": "2", "b": "1"}, "first"))
    urlencoded = "application/x-www-form-urlencoded"
    assert digest(b"a=1&b=2", urlencoded) == digest(b"b=2&a=1", urlencoded)
    assert digest(b"a=1&a=2", urlencoded) != digest(b"a=2&a=1", urlencoded), "the later one counts"


def test_a_form_among_parameters_is_compared_by_its_fields() -> None:
    body, type_ = multipart({"a": "1"}, "first")
    again, type_again = multipart({"a": "1"}, "second")
    query = ("q", None, b"1")
    assert digest([query, (None, type_, body)]) == digest([(None, type_again, again), query])


def test_what_cannot_be_read_as_a_form_is_compared_as_it_is() -> None:
    assert digest(b"broken", "multipart/form-data; boundary=x", protocol=TRUSS)
    assert digest(b"a=1", "application/x-www-form-urlencoded", forms="")


def test_a_compressed_body_is_the_same_when_it_was_compressed_at_another_time() -> None:
    encoded = [(b"Content-Encoding", b"gzip")]
    value = json.dumps({"x": 1}).encode()
    early, late = gzip.compress(value, mtime=1), gzip.compress(value, mtime=2)
    assert digest(early, headers=encoded) == digest(bytearray(late), headers=encoded)
    assert digest(early, headers=encoded) != digest(gzip.compress(b"other", mtime=1), headers=encoded)
    assert digest(early) != digest(late), "a file that happens to be compressed"


@pytest.mark.parametrize(
    "changes",
    [
        {"content_type": "text/plain"},
        {"headers": [("explain", "True"), ("url_path", "")]},
        {"headers": [("explain", "False"), ("url_path", "other")]},
        {"headers": [("explain", "False"), ("url_path", ""), (":path", "/x?q=2")]},
        {"protocol": TRUSS},
    ],
)
def test_another_call_is_another_request(changes: dict[str, Any]) -> None:
    usual = {"content_type": "application/json", "headers": [("explain", "False"), ("url_path", "")]}
    assert digest(b"1", **usual) != digest(b"1", **{**usual, **changes})
    assert digest(b"1", **usual) == digest(b"1", **{**usual, "content_type": "Application/JSON; charset=utf-8"})


def test_a_request_that_is_not_named_costs_no_more_than_its_values() -> None:
    sent = InferRow("j", (), None, b"1", None, False)
    processor = RequestProcessor(None, (), ())
    assert digest_of_request(sent, processor, FORMS, is_named=False) == digest_of_body(b"1")
    named = digest_of_request(sent, processor, FORMS, is_named=True)
    assert named[:DIGEST_SIZE] == digest_of_values(sent, processor, FORMS) and len(named) == 2 * DIGEST_SIZE


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: Counts its calls.
COUNT = """
    def handle(data, context):
        for index in range(len(data or [])):
            context.state[index] = (context.state.get(index) or 0) + 1
        return [str(context.state[index]) for index in range(len(data or []))]
"""


def test_a_form_that_is_sent_again_is_a_repetition_and_another_call_is_not(served: Callable[..., Served]) -> None:
    model = served(COUNT)

    def say(body: bytes, content_type: str, *, explain: str = "False", **claims: Any) -> Any:
        row = step("", "s", "", **claims)._replace(body=body, content_type=content_type)
        headers = (*row.headers, ("explain", explain), ("url_path", ""))
        parts = model.submit_row(row._replace(headers=headers), "s", **claims)
        model.step()
        return model.told(parts)

    one, other = multipart({"a": "1", "b": "2"}, "first"), multipart({"b": "2", "a": "1"}, "second")
    assert say(*one, number=1, token="t") == "1"
    assert say(*other, number=1, token="t") == "1"
    assert say(*other, number=1, token="t", explain="True") == "step_differs"
    assert say(*other, number=2, token="t", explain="True") == "2"
