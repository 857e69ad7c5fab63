"""From bodies to what a handler gets for them."""

import re
import subprocess
import sys
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ts.frontend_stub import BACKEND, row

from ts.handler_utils.asgi_scope import as_bytes
from ts.jobs.errors import RowFailure
from ts.runtime import decoded_rows

read_row = partial(decoded_rows.read_row, forms="ts.contracts.forms.form_bodies")


def read(body: Any, content_type: str | None = None, *, decode: bool = True) -> dict[str, Any]:
    return read_row(row("id", body, content_type), decode=decode).data


def multipart(*parts: tuple[str, bytes], boundary: str = "frontier") -> tuple[bytes, str]:
    """Return a body made of (part headers, value) and its content type."""
    lines = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + value + b"\r\n" for head, value in parts]
    return b"".join(lines) + f"--{boundary}--\r\n".encode(), f'multipart/form-data; boundary="{boundary}"'


@pytest.mark.parametrize(
    ("content_type", "body", "value"),
    [
        ("application/json", b'{"a": [1, "\xc3\xab"]}', {"a": [1, "ë"]}),
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("Application/JSON", b"[1]", [1]),
        ("application/json", b"{broken", bytearray(b"{broken")),
        ("application/json", b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ("application/json", '["\u00eb"]'.encode("utf-16"), ["\u00eb"]),
        ("text/plain", b"\xc3\xab", "ë"),
        ("text/plain; charset=utf-8", b"a", "a"),
        ("text/plain", b"\xff", bytearray(b"\xff")),
        ("text/csv; header=present; charset=latin-1", b"\xff", "\u00ff"),
        ('Text/Plain; Charset="ISO-8859-15"', b"\xa4", "\u20ac"),
        ("text/plain; charset=utf-16", "\u00eb".encode("utf-16"), "\u00eb"),
        ("text/plain; charset=Shift_JIS", "\u65e5".encode("shift_jis"), "\u65e5"),
        ("text/plain; charset=us-ascii", b"\xff", bytearray(b"\xff")),
        ("text/plain; charset=", b"\xc3\xab", "\u00eb"),
        ("application/json; charset=windows-1252", b'["\x80"]', ["\u20ac"]),
        ("application/json; charset=utf-16le", '["\u00eb"]'.encode("utf-16-le"), ["\u00eb"]),
        ("image/png; charset=none", b"\x89PNG", bytearray(b"\x89PNG")),
        ("image/png", b"\x89PNG", bytearray(b"\x89PNG")),
        (None, b"", bytearray()),
        (None, b"7", bytearray(b"7")),
    ],
)
def test_an_ordinary_body_is_decoded_by_its_content_type(content_type: str | None, body: bytes, value: Any) -> None:
    data = read(body, content_type)

    assert data == {"body": value}
    assert type(data["body"]) is type(value)


@pytest.mark.parametrize("charset", ["binary", "rot13", "base64", "idna", "unicode_escape", "utf-9", "../os"])
@pytest.mark.parametrize("kind", ["application/json", "text/csv"])
def test_text_in_a_charset_that_is_not_known_is_refused(kind: str, charset: str) -> None:
    with pytest.raises(
        RowFailure, match=f"Content-Type: '{kind}; charset={re.escape(charset)}' names a charset"
    ) as raised:
        read(b"1", f"{kind}; charset={charset}")

    assert (raised.value.status, raised.value.kind) == (415, "BadRequestException")
    assert read(b"1", f"{kind}; charset={charset}", decode=False) == {"body": bytearray(b"1")}


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", None])
def test_nothing_is_decoded_where_the_server_is_told_so(content_type: str | None) -> None:
    assert read(b"[1]", content_type, decode=False) == {"body": bytearray(b"[1]")}


def test_the_pseudo_header_has_the_media_type_without_parameters() -> None:
    found = read_row(row("id", b"[1]", "application/json; charset=utf-8"))

    assert found.get_request_properties() == {"body": {"content-type": "application/json"}}


def test_a_urlencoded_form_has_one_value_per_field() -> None:
    assert read(b"a=1&name=J+D%20%C3%AB&empty=", "application/x-www-form-urlencoded") == {
        "a": bytearray(b"1"),
        "name": bytearray("J D ë".encode()),
        "empty": bytearray(),
    }


def test_json_sent_as_a_form_becomes_a_field_name() -> None:
    assert read(b'{"a":1}', "application/x-www-form-urlencoded") == {'{"a":1}': bytearray()}


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_every_urlencoded_form_is_read_as_it_was_written(fields: dict[str, str]) -> None:
    data = read(urlencode(fields).encode(), "application/x-www-form-urlencoded")

    assert data == {name: bytearray(value.encode()) for name, value in fields.items()}


def test_a_multipart_form_decodes_files_by_type_and_leaves_fields_alone() -> None:
    body, content_type = multipart(
        (
            'Content-Disposition: form-data; name="data"; filename="a.json"\r\nContent-Type: application/json',
            b'{"a":1}',
        ),
        (
            'Content-Disposition: form-data; name="text"; filename="a"\r\nContent-Type: text/plain; charset=latin-1',
            b"h\xef",
        ),
        ('Content-Disposition: form-data; name="raw"; filename="a.bin"', b"\x00\r\n\xff"),
        ('Content-Disposition: form-data; name="field"\r\nContent-Type: application/json', b'{"a":1}'),
        ('Content-Disposition: form-data; name="na\xefve"', b""),
    )

    found = read_row(row("id", body, content_type))

    assert found.data == {
        "data": {"a": 1},
        "text": "h\u00ef",
        "raw": bytearray(b"\x00\r\n\xff"),
        "field": bytearray(b'{"a":1}'),
        "na\xefve": bytearray(),
    }
    assert found.get_request_properties() == {
        "data": {"content-type": "application/json"},
        "text": {"content-type": "text/plain"},
        "raw": {"content-type": "application/octet-stream"},
        "field": {"content-type": ""},
        "na\xefve": {"content-type": ""},
    }


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_every_multipart_value_is_read_as_it_was_written(values: list[bytes]) -> None:
    parts = [(f'Content-Disposition: form-data; name="{index}"', value) for index, value in enumerate(values)]
    body, content_type = multipart(*parts, boundary="a-boundary-that-no-value-holds-0b7c")

    assert read(body, content_type) == {str(index): bytearray(value) for index, value in enumerate(values)}


@pytest.mark.parametrize(
    ("content_type", "body", "message"),
    [
        ("multipart/form-data", b"", "boundary"),
        ("multipart/form-data; boundary=x", b"no boundary here", "Malformed multipart/form-data body"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1", "last boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nX: y\r\n\r\n1\r\n--x--\r\n", "has no name"),
    ],
)
def test_a_malformed_form_is_the_clients_error(content_type: str, body: bytes, message: str) -> None:
    with pytest.raises(RowFailure, match=message) as raised:
        read(body, content_type)

    assert raised.value.status == 400


def test_parameters_that_the_endpoint_knows_become_the_rows_values() -> None:
    data = read([["a", None, b"1"], [b"b", "application/json", b"[2]"], ["c", "text/plain", "text"]])

    assert data == {"a": bytearray(b"1"), "b": [2], "c": "text"}


@pytest.mark.parametrize(
    ("content_type", "body", "values"),
    [
        ("application/json; charset=utf-8", b"[2]", {"body": [2]}),
        (None, b"", {"body": bytearray()}),
        ("application/x-www-form-urlencoded", b"b=2&a=3", {"b": bytearray(b"2"), "a": bytearray(b"3")}),
    ],
)
def test_a_raw_body_among_parameters_is_cut_as_it_would_be_alone(
    content_type: str | None, body: bytes, values: dict[str, Any]
) -> None:
    assert read([["a", None, "1"], [None, content_type, body]]) == {"a": bytearray(b"1"), **values}


def test_the_handler_api_imports_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "asyncio", "inspect", "dataclasses", "yaml", "python_multipart", "argparse", "uuid"]
    code = f"import sys, ts, ts.context, ts.process.worker; print([name for name in {heavy} if name in sys.modules])"

    result = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("content_type", [None, "image/jpeg", "application/json", "text/plain"])
@pytest.mark.parametrize("named", [False, True])
def test_a_large_body_reads_like_a_small_one(content_type: str | None, named: bool) -> None:
    sent: Any = b'{"a": "\xc3\xa4"}'

    def value(raw: bytes | bytearray) -> Any:
        body: Any = [("body", content_type, raw)] if named else raw
        return read_row(row("job", body, content_type)).data["body"]

    received = bytearray(sent)
    found = value(received)
    assert found == value(sent)
    assert type(found) is type(value(sent))
    assert not isinstance(found, bytearray) or found is received  # without a copy


def test_a_large_form_reads_like_a_small_one() -> None:
    form = urlencode({"a": "1", "b": "x y"}).encode()
    wire_row = row("job", bytearray(form), "application/x-www-form-urlencoded")
    assert read_row(wire_row).data == {"a": bytearray(b"1"), "b": bytearray(b"x y")}


def test_code_that_is_to_get_bytes_gets_bytes() -> None:
    assert type(as_bytes(bytearray(b"body"))) is bytes
    assert as_bytes(bytearray(b"body")) == b"body"
