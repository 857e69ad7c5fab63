"""The body that a script gets, however the request came."""

import pytest

from ts.contracts.sagemaker.load_sagemaker import read_row
from ts.protocol.messages import InferRow

JSON = b"application/json"


@pytest.mark.parametrize(
    ("body", "content_type", "given"),
    [
        (b"[1]", JSON, b"[1]"),
        ([(b"model_name", None, "m"), (None, JSON, b"[1]")], None, b"[1]"),
        ([("data", None, b"[1]")], None, b"[1]"),
        ([("other", None, b"[1]")], None, b""),
        (b"a=1", b"application/x-www-form-urlencoded", b"a=1"),
    ],
)
def test_the_body_is_what_was_sent(body: object, content_type: bytes | None, given: bytes) -> None:
    row = read_row(InferRow("a", [(b"Content-Type", JSON)], content_type, body, None, False))  # type: ignore[arg-type]
    assert row.data == {"body": given}
    assert row.get_request_property("content-type") == "application/json"
