"""What a client makes of the messages of a live session, across lost connections."""

import json
import struct
from typing import Any

import pytest

from torchserve_py.client.replies import SequenceLost, StepFailed
from torchserve_py.client.session_progress import Part, SessionProgress

HEADER = struct.Struct(">BBHI")


def part(number: int, body: bytes, *, more: bool = False) -> bytes:
    return HEADER.pack(1, more, 200, number) + body


def session(last: int = 0, resume: str | None = "token") -> bytes:
    told = {"sequence": "live-1", "resume": resume, "last": last, "window": 4, "max_message_size": 100}
    return HEADER.pack(2, 0, 0, 0) + json.dumps(told).encode()


def failure(number: int, cause: str, status: int = 503) -> bytes:
    return HEADER.pack(4, 0, status, number) + json.dumps({"status": status, "cause": cause, "message": "no"}).encode()


def resume_of(progress: SessionProgress) -> Any:
    message = progress.resume()
    assert HEADER.unpack_from(message) == (2, 0, 0, 0)
    return json.loads(message[8:])


@pytest.fixture
def progress() -> SessionProgress:
    begun = SessionProgress()
    begun.greeted(session())
    return begun


def send(progress: SessionProgress, *bodies: bytes) -> None:
    for body in bodies:
        progress.step(body, end=False)


def taken(progress: SessionProgress) -> list[Part | StepFailed]:
    """Return what the caller can take now."""
    got = []
    while progress.has_next:
        got.append(progress.next())
    return got


def bodies(progress: SessionProgress) -> list[bytes]:
    return [each.body for each in taken(progress) if isinstance(each, Part)]


def due(progress: SessionProgress) -> list[bytes]:
    """Return the messages that are to be sent again."""
    return progress.messages_due()


def test_steps_are_numbered_and_answered(progress: SessionProgress) -> None:
    assert progress.step(b"a", end=False) == (1, HEADER.pack(1, 0, 0, 1) + b"a")
    assert progress.step(b"b", end=True) == (2, HEADER.pack(1, 1, 0, 2) + b"b")
    progress.take(HEADER.pack(3, 1, 200, 1) + b'{"x": "y"}')
    progress.take(part(1, b"A"))
    assert taken(progress) == [Part(1, False, 200, {"x": "y"}, b"A")]
    assert (progress.unanswered, progress.has_ended) == (1, False)
    progress.take(part(2, b"B"))
    assert (progress.unanswered, progress.has_ended) == (0, True)


def test_a_session_of_another_client_goes_on_after_its_last_step() -> None:
    progress = SessionProgress("theirs")
    progress.greeted(session(resume="new"))
    assert resume_of(progress) == {"resume": "theirs", "after": 0, "unanswered": []}
    assert progress.resumed(session(last=2, resume="theirs")) == []
    assert (progress.token_for_others, progress.last_applied) == ("theirs", 2)
    assert progress.step(b"c", end=False) == (3, HEADER.pack(1, 0, 0, 3) + b"c")


def test_a_resumed_session_gets_missed_answers_and_sends_the_rest_again(progress: SessionProgress) -> None:
    send(progress, b"a", b"b", b"c", b"d")
    progress.take(part(1, b"A"))
    assert resume_of(progress) == {"resume": "token", "after": 1, "unanswered": [2, 3, 4]}
    assert progress.resumed(part(2, b"B")) is None
    assert progress.resumed(session(last=2)) == [HEADER.pack(1, 0, 0, 3) + b"c", HEADER.pack(1, 0, 0, 4) + b"d"]
    assert bodies(progress) == [b"A", b"B"]


@pytest.mark.parametrize("again", [[b"one two three"], [b"on", b"e ", b"two th", b"ree"]])
def test_a_stream_that_is_repeated_goes_on_where_it_broke_off(progress: SessionProgress, again: list[bytes]) -> None:
    send(progress, b"a")
    progress.take(part(1, b"one ", more=True))
    progress.take(part(1, b"two ", more=True))
    progress.resume()
    progress.resumed(session())
    for index, body in enumerate(again):
        progress.take(part(1, body, more=index < len(again) - 1))
    assert b"".join(bodies(progress)) == b"one two three"
    assert progress.unanswered == 0


@pytest.mark.parametrize(("begun", "again"), [(b"one", b"two, three"), (b"one two", b"one")])
def test_a_stream_that_begins_otherwise_or_is_shorter_is_no_answer(
    progress: SessionProgress, begun: bytes, again: bytes
) -> None:
    send(progress, b"a")
    progress.take(part(1, begun, more=True))
    progress.resume()
    progress.resumed(part(1, again))
    failed = taken(progress)[-1]
    assert isinstance(failed, StepFailed)
    assert failed.cause == "outcome_unknown"


def test_headers_belong_to_the_part_that_follows_though_nobody_waits_for_it(progress: SessionProgress) -> None:
    send(progress, b"a", b"b")
    progress.take(part(1, b"A"))
    progress.take(HEADER.pack(3, 1, 200, 1) + b'{"x": "y"}')
    progress.take(part(1, b"A"))
    progress.take(part(2, b"B"))
    assert [each.headers for each in taken(progress) if isinstance(each, Part)] == [{}, {}]


@pytest.mark.parametrize("cause", ["outcome_unknown", "request_running"])
def test_a_step_of_unknown_outcome_is_asked_for_under_its_own_number(progress: SessionProgress, cause: str) -> None:
    send(progress, b"a")
    progress.take(failure(1, cause))
    assert due(progress) == [HEADER.pack(1, 0, 0, 1) + b"a"]
    progress.due.clear()
    progress.take(part(1, b"A"))
    assert bodies(progress) == [b"A"]


def test_steps_behind_one_that_is_sent_again_are_sent_again_behind_it(progress: SessionProgress) -> None:
    send(progress, b"a", b"b", b"c")
    progress.take(failure(1, "sequence_store"))
    progress.take(failure(2, "step_gap", 409))
    assert due(progress) == [HEADER.pack(1, 0, 0, 1) + b"a", HEADER.pack(1, 0, 0, 2) + b"b"]
    assert not progress.has_next


def test_steps_behind_one_that_has_failed_fail_and_their_numbers_are_used_again(progress: SessionProgress) -> None:
    send(progress, b"a", b"b", b"c")
    progress.take(part(1, b"A"))
    progress.take(failure(2, "handler_error"))
    progress.take(failure(3, "step_gap", 409))
    assert progress.step(b"d", end=False) == (2, HEADER.pack(1, 0, 0, 2) + b"d")
    progress.take(part(2, b"D"))
    told = [each.cause if isinstance(each, StepFailed) else each.body for each in taken(progress)]
    assert told == [b"A", "handler_error", "step_gap", b"D"]


def test_the_number_of_a_step_that_was_applied_is_not_used_again(progress: SessionProgress) -> None:
    send(progress, b"a")
    progress.take(failure(1, "step_applied", 409))
    assert progress.step(b"b", end=False)[0] == 2


def test_steps_that_a_leaving_server_refuses_are_sent_when_the_session_is_resumed(progress: SessionProgress) -> None:
    send(progress, b"a", b"b")
    progress.take(failure(1, "draining"))
    assert not progress.has_next
    assert resume_of(progress)["unanswered"] == [1, 2]
    assert progress.resumed(failure(1, "sequence_moved", 409)) is None
    assert not progress.has_next, "the server closes the connection, and the client tries again"


def test_a_lost_sequence_is_the_end(progress: SessionProgress) -> None:
    send(progress, b"a")
    progress.resume()
    with pytest.raises(SequenceLost):
        progress.resumed(failure(0, "sequence_lost", 410))
    with pytest.raises(SequenceLost):
        progress.take(failure(1, "sequence_expired", 410))
