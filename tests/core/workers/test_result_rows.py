"""What a worker may send as a result, and what becomes of the rest."""

from typing import Any

import pytest

from torchserve_py.core.jobs.parts import Part, part_of
from ts.protocol.messages import SequenceNews

WHOLE = ["job", False, 200, "", [["x-a", "1"]], b"body", None, None]
INJECTION = "1\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK"


def changed(field: int, value: Any) -> list[Any]:
    return [*WHOLE[:field], value, *WHOLE[field + 1 :]]


@pytest.mark.parametrize(
    "row",
    [
        WHOLE,
        changed(1, True),
        changed(2, 599),
        changed(3, "Très bien"),
        changed(4, []),
        changed(4, [["x-a", "\t"], ["x-b", "日本"], ["x-c", ""]]),
        changed(5, b""),
        ["job", False, 499, "", [], b"", "cancelled", None],
    ],
)
def test_what_the_protocol_allows_is_passed_on(row: list[Any]) -> None:
    assert part_of([*row]) == Part._make(row)


def test_what_a_row_tells_of_sequences_is_a_record() -> None:
    part = part_of(changed(7, ["step_gap", ["a", "b"], "t", "2", 9, "failed", 3]))
    told = SequenceNews("step_gap", ["a", "b"], "t", "2", state_size=9, migration="failed", last=3)
    assert part.news == told


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (changed(1, 1), "whether parts follow is told as 1"),
        (changed(2, 200.5), "the response status 200.5; it must be an integer from 200 to 599"),
        (changed(2, True), "the response status True;"),
        (changed(2, 199), "the response status 199;"),
        (changed(2, "200"), "the response status '200';"),
        (changed(3, INJECTION), "the reason phrase"),
        (changed(3, None), "the reason phrase None, which is no text"),
        (changed(4, None), "its headers are not a list of pairs"),
        (changed(4, {"x-a": "1"}), "its headers are not a list of pairs"),
        (changed(4, [["x-a"]]), "its headers are not a list of pairs"),
        (changed(4, [["x-a", INJECTION]]), "the response header x-a to"),
        (changed(4, [["x-a", b"1"]]), "the response header x-a to b'1', which is no text"),
        (changed(4, [["x-a", "\udc80"]]), "which holds a character that HTTP forbids"),
        (changed(4, [["x a", "1"]]), "the response header name 'x a'"),
        (changed(4, [[["x"], "1"]]), "a response header whose name is ['x']"),
        (changed(5, "text"), "the body is of type str; it must be bytes"),
        (changed(5, [1, 2]), "the body is of type list; it must be bytes"),
        (changed(6, 7), "its error is not text"),
        (
            ["job", True, 500, "", [], b"", "an error and more", None],
            "its error is not text, or parts are to follow it",
        ),
        (
            changed(7, "step_gap"),
            "what it tells of sequences is not a list of the fields",
        ),
        (changed(7, ["", [], "", "", None, "", 0]), "what it tells of sequences is not a list"),
        (changed(7, ["", [], ""]), "what it tells of sequences is not a list"),
        (changed(7, ["", [1], "", "", 0, "", 0]), "what it tells of sequences is not a list"),
        (changed(7, ["", [], None, "", 0, "", 0]), "what it tells of sequences is not a list"),
        (WHOLE[:6], "its row has 6 fields instead of 8"),
        ([*WHOLE, 1], "its row has 9 fields instead of 8"),
        (["job"], "its row has 1 fields instead of 8"),
    ],
)
def test_a_malformed_row_fails_its_job_and_nothing_of_it_is_passed_on(row: list[Any], told: str) -> None:
    part = part_of(row)
    assert part == Part(
        "job", len(row) > 1 and row[1] is True, 500, "", [], b"", part.error, SequenceNews("outcome_unknown")
    )
    assert part.error is not None
    assert told in part.error


@pytest.mark.parametrize("row", [None, "job", {}, [], [7], [None, False, 200, "", [], b"", None]])
def test_a_row_that_names_no_job_is_refused(row: Any) -> None:
    with pytest.raises(ValueError, match="must be an array that begins with the id of a job"):
        part_of(row)
