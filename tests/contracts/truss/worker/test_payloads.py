"""Payloads: JSON and the binary form, in and out, and what is refused."""

import datetime
import decimal
import json
import math
import pickle
import uuid
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ts.contracts.truss.encodings import from_msgpack, to_json, to_msgpack
from ts.contracts.truss.reply import Problem
from ts.contracts.truss.request_forms import decode, encode, is_binary


class Inner(BaseModel):
    c: int


class Typed(BaseModel):
    a: int
    b: list[Inner] = []


def refused(body: bytes, input_type: type[BaseModel] | None = None, *, binary: bool = False) -> str:
    with pytest.raises(Problem) as problem:
        decode(body, input_type, binary=binary)
    assert (problem.value.status, problem.value.code) == (400, "700")
    return str(problem.value.error)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/octet-stream", True),
        ("Application/Octet-Stream; charset=binary", True),
        (b"application/octet-stream", True),
        ("application/json", False),
        ("", False),
        (None, False),
    ],
)
def test_which_requests_are_binary(content_type: Any, expected: bool) -> None:
    assert is_binary(content_type) is expected


def test_json_that_is_none() -> None:
    assert refused(b"").startswith("Invalid JSON payload: Expecting value")
    assert refused(b"nope").startswith("Invalid JSON payload: ")
    assert refused(b"\xff").startswith("Invalid JSON payload: ")
    assert refused(b"[" * 200_000).startswith("Invalid JSON payload: ")
    assert decode("\ufeff[1]".encode(), None, binary=False) == [1]
    assert decode('"ü"'.encode("utf-16"), None, binary=False) == "ü"


def test_typed_inputs() -> None:
    assert decode(b'{"a": 1}', Typed, binary=False) == Typed(a=1)
    assert decode(msgpack.packb({"a": 1}), Typed, binary=True) == Typed(a=1)
    assert refused(b"{}", Typed) == "Input Parsing Error:\n  `a`: Field required."
    assert refused(b'{"a": "x", "b": [{"c": 1}, {"c": null}]}', Typed) == (
        "Input Parsing Errors:\n"
        "  `a`: Input should be a valid integer, unable to parse string as an integer.\n"
        "  `b[1].c`: Input should be a valid integer."
    )
    assert refused(b"nope", Typed).startswith("Input Parsing Error:\n  `__root__`: Expecting value")
    assert refused(b"3", Typed).startswith("Input Parsing Error:\n  ``: Input should be")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, b'{"a": [1, 2.5, null, true, "\\u00fc"]}'),
        ((1, 2), b"[1, 2]"),
        ({"n": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}, b'{"n": 3, "f": 0.5, "b": true}'),
        (np.arange(4).reshape(2, 2), b"[[0, 1], [2, 3]]"),
        ({np.int64(1): np.float64(2)}, b'{"1": 2.0}'),
        ([math.nan, math.inf, {"a": -math.inf}, np.array([np.nan, 1])], b'[null, null, {"a": null}, [null, 1.0]]'),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), b'"2026-01-02T03:04:05"'),
        ([datetime.date(2026, 1, 2), datetime.time(3, 4), datetime.timedelta(1)], b'["2026-01-02", "03:04:00", "P1D"]'),
        ([decimal.Decimal("1.50"), uuid.UUID(int=1)], b'["1.50", "00000000-0000-0000-0000-000000000001"]'),
        ({"m": Inner(c=1)}, b'{"m": {"c": 1}}'),
        (Typed(a=1, b=[Inner(c=2)]), b'{"a":1,"b":[{"c":2}]}'),
        (None, b"null"),
    ],
)
def test_results_in_json(value: Any, expected: bytes) -> None:
    answer = encode(value, binary=False)
    assert (answer.status, answer.body) == (200, expected)
    assert answer.headers == (("content-type", "application/json"),)


@pytest.mark.parametrize(
    ("value", "binary"),
    [
        *((value, binary) for value in ({1, 2}, object(), iter([]), {"a": object()}) for binary in (False, True)),
        (b"bytes", False),
        ({(1, 2): 3}, False),
    ],
)
def test_results_that_cannot_be_told(value: Any, binary: bool) -> None:
    with pytest.raises(Problem) as problem:
        encode(value, binary=binary)
    assert (problem.value.status, problem.value.code) == (500, "500")
    assert "object" not in problem.value.error


def test_a_result_that_holds_itself_or_is_too_deep(caplog: pytest.LogCaptureFixture) -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(Problem):
            encode(value, binary=False)
    assert "it holds itself, or is nested too deeply" in caplog.text
    assert len(caplog.text.splitlines()) == 2  # and no traceback of thousands of lines


VALUES = [
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4, 5),
    datetime.timedelta(1, 2, 3),
    decimal.Decimal("1.50"),
    uuid.UUID(int=7),
    1 + 2j,
    b"bytes",
    {"a": [None, True, 1, 2.5, "ü"]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_in_the_binary_form(value: Any) -> None:
    back = from_msgpack(to_msgpack({"it": value}))["it"]
    assert back == value
    assert type(back) is type(value)


ARRAYS = [
    np.arange(4, dtype="<f4").reshape(2, 2),
    np.arange(6).reshape(2, 3).T,
    np.array(3.5),
    np.array([], dtype=np.uint8),
    np.array([True, False]),
    np.array(["a", "bc"]),
    np.array([(1, 2.5), (3, 4.5)], dtype=[("x", "<i4"), ("y", "<f8")]),
    np.array([(1, [2, 3])], dtype=[("x", "<i4"), ("y", "<i2", (2,))]),
    np.float32(0.5),
    np.bool_(True),
    np.uint8(255),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_in_the_binary_form(array: Any) -> None:
    back = from_msgpack(to_msgpack(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)


def test_the_bytes_are_those_of_msgpack_numpy() -> None:
    array = to_msgpack(np.array([[0, 1], [2, 3]], dtype="<f4"))
    assert array.hex() == (
        "85c4026e64c3c40474797065a33c6634c4046b696e64c400c4057368617065920202c40464617461c410"
        + np.array([0, 1, 2, 3], dtype="<f4").tobytes().hex()
    )
    assert to_msgpack(np.float32(1)).hex() == "83c4026e64c2c40474797065a33c6634c40464617461c4040000803f"
    assert msgpack.unpackb(to_msgpack(datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)), raw=False) == {
        b"__dt_datetime_iso__": True,
        b"data": "2026-01-02T00:00:00Z",
    }


def tagged(**values: Any) -> bytes:
    return msgpack.packb({name.encode(): value for name, value in values.items()})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (tagged(nd=True, type="|O", kind=b"O", shape=[1], data=pickle.dumps([print])), "unsupported payload"),
        (tagged(nd=True, type="|O", kind=b"", shape=[1], data=b"12345678"), "unsupported payload"),
        (tagged(nd=True, type=[["a", "O"]], kind=b"V", shape=[1], data=b"12345678"), "unsupported payload"),
        (tagged(nd=False, type="O", data=b"12345678"), "unsupported payload"),
        (tagged(nd=True, type={"names": ["a"]}, kind=b"", shape=[1], data=b""), "cannot have the type"),
        (tagged(nd=True, type="<f4", kind=b"", shape=[9], data=b"1234"), ""),
        (tagged(nd=True, type="no such", kind=b"", shape=[1], data=b"1234"), ""),
        (tagged(nd=True, data=b"1234"), "KeyError"),
        (tagged(__decimal__=True, data="x"), "InvalidOperation"),
        (tagged(__uuid__=True, data=3), ""),
        (tagged(__dt_timedelta__=True, data=[1]), ""),
        (tagged(complex=True, data="x"), ""),
        (msgpack.packb({"a": 1})[:-1], "incomplete input"),
        (msgpack.packb(1) + b"x", ""),
        (msgpack.packb({1: 2}), ""),
        (b"", "incomplete input"),
        (b"\xc1", "Invalid MessagePack payload: it holds a byte with which no value begins."),
        (b"\x91" * 2000, "Invalid MessagePack payload: its values are nested too deeply."),
    ],
)
def test_binary_payloads_that_are_refused(body: bytes, told: str) -> None:
    assert told in refused(body, binary=True)


def test_look_alikes_with_text_keys_stay_as_they_are() -> None:
    value = {"__decimal__": True, "data": "1"}
    assert from_msgpack(to_msgpack(value)) == value


def test_results_in_the_binary_form() -> None:
    assert encode(b"raw", binary=True).body == b"raw"
    assert encode(b"raw", binary=True).headers == (("content-type", "application/octet-stream"),)
    assert msgpack.unpackb(encode(Inner(c=1), binary=True).body) == {"c": 1}
    with pytest.raises(Problem):
        encode(np.array([object()]), binary=True)
    with pytest.raises(Problem):
        encode(2**70, binary=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_is_what_python_writes(value: Any) -> None:
    assert to_json(value) == json.dumps(value).encode()


@given(st.binary(max_size=60))
def test_no_bytes_are_too_strange_to_be_refused(body: bytes) -> None:
    for binary in (False, True):
        try:
            decode(body, None, binary=binary)
        except Problem as problem:
            assert problem.status == 400
