"""What counts as a difference between two answers."""

import pytest

from torchserve_py.versions.traffic.answer_comparison import Comparison


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        (b'{"a": 1, "b": [true, null]}', b'{"b":[true,null],"a":1.0}'),
        (b"\xff\x00", b"\xff\x00"),
        (b"NaN", b" NaN"),
        (b'data: {"a": 1}\n\ndata: [DONE]\n\n', b'data: {"a":1}\n\ndata: [DONE]\n\n'),
    ],
)
def test_the_same_values_are_equal(recorded: bytes, replayed: bytes) -> None:
    assert Comparison().differences(recorded, replayed) == []


@pytest.mark.parametrize(
    ("recorded", "replayed", "said"),
    [
        (b'{"a": {"b": [1, 2]}}', b'{"a": {"b": [1, 3]}}', "a.b[1]: 2 became 3"),
        (b'{"a": 1}', b"{}", "a is missing"),
        (b"{}", b'{"a": 1}', "a is new"),
        (b"[1]", b"[1, 2]", "the list had 1 items and has 2"),
        (b"true", b"1", "true became 1"),
        (b"[1, true]", b"[1, 1]", "[1]: true became 1"),
        (b'"1"', b"1", '"1" became 1'),
        (b"yes", b"no", "yes became no"),
        (b"data: 1\n\n", b"data: 1\n\ndata: 2\n\n", "1 events became 2"),
        (b"data: 1\n\ndata: 2\n\n", b"data: 1\n\ndata: 3\n\n", "event 2: 2 became 3"),
    ],
)
def test_what_differs_is_named(recorded: bytes, replayed: bytes, said: str) -> None:
    assert Comparison().differences(recorded, replayed) == [said]


def test_numbers_may_differ_by_the_tolerance_and_members_be_left_out() -> None:
    close = Comparison(0.01, ("usage.seconds",))
    assert close.differences(b'{"x": 100, "usage": {"seconds": 1}}', b'{"x": 100.5, "usage": {"seconds": 9}}') == []
    assert close.differences(b'{"x": 100}', b'{"x": 102}') == ["x: 100 became 102"]
    assert close.differences(b'{"id": 1}', b'{"id": 2}', ("id",)) == []
