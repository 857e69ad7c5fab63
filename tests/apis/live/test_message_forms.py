"""The forms of a session's messages: whatever a client sends is read, or refused with a reason."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.apis.live.message_forms import FORMS, Form, LiveStep, Resume, read_message
from torchserve_py.apis.live.session_ends import SessionOver
from torchserve_py.core.jobs.parts import Part
from torchserve_py.net.websocket import Kind, Message

JSON, BINARY = FORMS.values()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(["step", "body", "content_type", "end", "resume", "after", "unanswered", "base64"])


def read(form: Form, data: bytes) -> LiveStep | Resume:
    return read_message(form, Message(Kind.text if form.is_text else Kind.binary, data))


@pytest.mark.parametrize("form", [JSON, BINARY])
@given(data=st.binary())
def test_any_bytes_are_read_or_refused(form: Form, data: bytes) -> None:
    with contextlib.suppress(SessionOver):
        read(form, data)


@given(document=st.dictionaries(MEMBERS, VALUES))
def test_any_json_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(SessionOver):
        got = read(JSON, json.dumps(document).encode())
        assert isinstance(got, LiveStep | Resume)
        assert isinstance(got, Resume) or isinstance(got.body, bytes)


def test_deep_json_is_refused() -> None:
    with pytest.raises(SessionOver):
        read(JSON, b'{"resume": "a", "unanswered": ' + b"[" * 100_000)


@given(body=st.binary())
def test_an_answer_in_json_has_the_bytes_of_the_handler(body: bytes) -> None:
    (message,) = JSON.part(1, Part("job", False, 200, "", [], body, None))
    told = json.loads(message)["body"]
    step = read(JSON, json.dumps({"body": told}).encode())
    assert isinstance(step, LiveStep)
    assert step.body == body


@given(body=st.binary(), number=st.integers(0, 2**32 - 1), ends=st.booleans())
def test_a_binary_step_is_its_header_and_its_body(body: bytes, number: int, ends: bool) -> None:
    message = bytes((1, ends, 0, 0)) + number.to_bytes(4, "big") + body
    assert read(BINARY, message) == LiveStep(number, body, None, ends)
