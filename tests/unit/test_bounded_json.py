"""JSON that the frontend reads itself: what is found in it, and that nothing is made of the rest."""

import tracemalloc
from collections.abc import Callable

import pytest

from torchserve_py.base.bounded_json import MAX_PARSED, MAX_SEARCHED, UnreadableJson, check_object, read_member

LARGE = b'"x": [' + b"[]," * MAX_PARSED + b"1]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": {"b": 1}}', {"b": 1}),
        (b'{"x": [[1, {"a": 2}], "\\"a\\": 3"], "a": "4"}', "4"),
        (b'{"a": 1, "a": 2}', 2),
        (b'{"a": null}', None),
        (b"{}", None),
        (b'{"x": NaN, "a": [-Infinity]}', [float("-inf")]),
        (b'\xef\xbb\xbf{"a": 1}', 1),
        (b"{" + LARGE + b', "a": 5}', 5),
        (b'{"a": 6, ' + LARGE + b"}", 6),
    ],
)
def test_a_member_is_found(text: bytes, value: object) -> None:
    assert read_member(memoryview(text), "a") == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'"a"',
        b'{"a": 1',
        b'{"a": 1} 2',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 10_000,
        b'{"x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b', "a": 1}',
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"a": [' + b"[]," * MAX_PARSED + b"1]}",
        b'{"x": NaN, ' + LARGE + b', "a": 1}',
    ],
)
def test_what_is_no_object_or_over_a_limit_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableJson):
        read_member(text, "a")


def test_a_text_that_is_too_large_is_not_searched() -> None:
    with pytest.raises(UnreadableJson, match="too many to look for"):
        read_member(bytes(MAX_SEARCHED + 1), "a")


@pytest.mark.parametrize("text", [b'{"a": [1, "\xc3\xa9"]}', b'{"a": NaN}', b"{" + LARGE + b"}"])
def test_an_object_passes(text: bytes) -> None:
    check_object(text)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"a": "\xff"}', b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"), b'{"a": tru}']
)
def test_what_is_no_object_does_not_pass(text: bytes) -> None:
    with pytest.raises(UnreadableJson):
        check_object(text)


@pytest.mark.parametrize("read", [check_object, lambda text: read_member(text, "a")])
@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",', b"0,", b'{"a":{"b":[]}},'])
def test_nothing_is_made_of_what_is_not_needed(read: Callable[[bytes], object], piece: bytes) -> None:
    text = b'{"inputs": [' + piece * (2_000_000 // len(piece)) + b'1], "a": {"id": 1}}'
    read(text[:12] + b"]}")  # what is made once
    tracemalloc.start()
    try:
        read(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(text) + 100_000  # the decoded text at most; the lists would take twenty times as much
