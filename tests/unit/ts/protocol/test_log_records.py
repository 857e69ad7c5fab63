"""Records of a worker's log: what they say of the requests that they are about; nothing else is taken for one."""

import logging
from collections.abc import Iterator

import pytest

from ts.protocol.log_records import MARK, RecordFormatter, no_requests, record_of, running


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    running.set(no_requests)


def formatted(**changes: object) -> str:
    record = logging.LogRecord("handler", logging.WARNING, "h.py", 1, "half of %s\nis lost", ("it",), None)
    record.__dict__.update(changes)
    line = RecordFormatter().format(record)
    assert "\n" not in line
    return line


def test_a_record_is_one_line_that_says_which_request_runs() -> None:
    assert record_of(formatted()) == {
        "level": 30,
        "model_logger": "handler",
        "message": "half of it\nis lost",
        "request_ids": [],
        "sequence_ids": [],
    }
    running.set(lambda: [("r", "s")])
    entry = record_of(formatted())
    assert entry is not None
    assert (entry["request_id"], entry["sequence_id"]) == ("r", "s")
    running.set(lambda: [("r1", "s"), ("r2", "")])
    entry = record_of(formatted())
    assert entry is not None
    assert (entry["request_ids"], entry["sequence_ids"]) == (["r1", "r2"], ["s"])


def test_what_a_record_itself_says_counts_for_more() -> None:
    running.set(lambda: [("r1", "s"), ("r2", "")])
    entry = record_of(formatted(request_id="r2"))
    assert entry is not None
    assert entry["request_id"] == "r2"
    assert "request_ids" not in entry


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", '"', "\n"])
def test_what_is_too_long_for_a_line_is_several_records(character: str) -> None:
    running.set(lambda: [("r", "s")])
    text = character * 100_000
    record = logging.LogRecord("handler", logging.WARNING, "h.py", 1, text, None, None)
    lines = RecordFormatter().format(record).split("\n")
    assert max(map(len, lines)) < 64 * 1024
    entries = [record_of(line) for line in lines]
    assert "".join(entry["message"] for entry in entries if entry is not None) == text
    assert {(entry["level"], entry["request_id"], entry["sequence_id"]) for entry in entries if entry} == {
        (30, "r", "s")
    }


def test_the_stack_that_a_record_is_to_show_is_there() -> None:
    entry = record_of(formatted(stack_info="Stack (most recent call last):\n  here"))
    assert entry is not None
    assert entry["message"] == "half of it\nis lost\nStack (most recent call last):\n  here"


@pytest.mark.parametrize(
    "line",
    ["", "text", MARK, MARK + "{", MARK + "[]", MARK + "{}", MARK + '{"level": "x"}', MARK + "[" * 60_000],
    ids=lambda line: line[:16],
)
def test_other_lines_are_no_records(line: str) -> None:
    assert record_of(line) is None
