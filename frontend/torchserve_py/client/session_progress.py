"""How far a session is, without a connection: which steps have no answer, and what messages mean.

Answers are handed out in the order of the steps, even if a step is asked for again while later ones are answered.
"""

import hashlib
import json
import struct
from collections import deque
from typing import Final, NamedTuple

from torchserve_py.client.replies import SequenceLost, StepFailed

SUBPROTOCOL: Final = "sequences.binary.v1"
#: The kind, the flags, the status and the number of the step; see ``docs/live-sessions.md``.
_HEADER: Final = struct.Struct(">BBHI")
_STEP = _PART = 1
_RESUME = _SESSION = 2
_HEADERS: Final = 3
_FAILURE: Final = 4
_MORE = _END = 1
#: Causes after which this attempt of the step was not applied, and the step may be sent again.
_PASSING: Final = frozenset({"sequence_moved", "sequence_store", "no_worker"})
_NOT_APPLIED: Final = "not_applied"
_UNKNOWN: Final = "outcome_unknown"
#: Causes after which the step may have been applied, or may be yet: it is asked for under its own number.
_OPEN: Final = frozenset({_UNKNOWN, "request_running"})
#: The server closes the session after this cause, and refuses all later steps; they are sent when it is resumed.
_LEAVING: Final = "draining"
_LOST: Final = frozenset({"sequence_lost", "sequence_expired"})
#: Of a step whose answer was too large to be kept.
_NOT_KEPT: Final = "handler_error"


class Part(NamedTuple):
    """A part of an answer."""

    number: int
    more: bool
    status: int
    headers: dict[str, str]
    body: bytes


class _Step:
    """A step without a whole answer; what the caller has had of a stream is known by length and digest."""

    def __init__(self, body: bytes, *, end: bool) -> None:
        self.body = body
        self.end = end
        #: What the caller can take: parts of the answer, or the failure; and whether nothing follows.
        self.arrived = deque[Part | StepFailed]()
        self.is_answered = False
        #: Whether an attempt may have been applied, so that the step keeps its number.
        self.is_open = False
        self._seen, self._digest = 0, hashlib.sha256()
        self._again: bytes | None = None

    def begin_again(self) -> None:
        """Expect the answer from its beginning, of which the caller has had a part."""
        if self._seen:
            self._again = b""

    def unseen(self, number: int, body: bytes, *, more: bool) -> bytes:
        """Return what of a part the caller has not had. Raises StepFailed: the answer begins otherwise than before."""
        if self._again is not None:
            self._again += body
            if more and len(self._again) < self._seen:
                return b""
            begin, body, self._again = self._again[: self._seen], self._again[self._seen :], None
            if hashlib.sha256(begin).digest() != self._digest.digest():
                raise StepFailed(
                    number, 500, _UNKNOWN, "The stream broke off, and began otherwise when it was repeated."
                )
        self._seen += len(body)
        self._digest.update(body)
        return body


class SessionProgress:
    """The steps of a session."""

    def __init__(self) -> None:
        self.sequence = ""
        #: How many steps may be without an answer.
        self.window = 1
        #: Whether a step was answered that the caller has marked as the last.
        self.has_ended = False
        #: The numbers of steps to be sent again a moment later.
        self.due: list[int] = []
        #: What resumes the session over another connection, if it can.
        self.token: str | None = None
        self._after = self._sent = 0
        self._steps: dict[int, _Step] = {}
        self._headers: dict[str, str] = {}

    @property
    def unanswered(self) -> int:
        """How many steps have no answer."""
        return len(self._unanswered)

    @property
    def is_awaited(self) -> bool:
        """Whether there are steps whose answers the caller has not taken."""
        return bool(self._steps)

    @property
    def is_overtaken(self) -> bool:
        """Whether a later step was answered than one without an answer: resuming tells what has become of that."""
        return any(number < self._after for number in self._unanswered)

    @property
    def has_next(self) -> bool:
        """Whether `next` has something to return."""
        return next((bool(step.arrived) for step in self._steps.values()), False)

    def next(self) -> Part | StepFailed:
        """Return the next part of the answer to the oldest step that has one to come, or the step's failure."""
        number, step = next(iter(self._steps.items()))
        arrived = step.arrived.popleft()
        if step.is_answered and not step.arrived:
            del self._steps[number]
        return arrived

    def greeted(self, message: bytes) -> None:
        """Take the first message of the first connection."""
        told = json.loads(message[_HEADER.size :])
        self.token, self.window, self.sequence = told["resume"], told["window"], told["sequence"]

    def step(self, body: bytes, *, end: bool) -> tuple[int, bytes]:
        """Return the number of a new step, and the message that sends it."""
        self._sent += 1
        self._steps[self._sent] = _Step(body, end=end)
        return self._sent, self.message(self._sent)

    def message(self, number: int) -> bytes:
        step = self._steps[number]
        return _HEADER.pack(_STEP, _END if step.end else 0, 0, number) + step.body

    def resume(self) -> bytes:
        self._headers, self.due = {}, []
        for number in self._unanswered:
            self._steps[number].begin_again()
        asked = {"resume": self.token, "after": self._after, "unanswered": self._unanswered}
        return _HEADER.pack(_RESUME, 0, 0, 0) + json.dumps(asked).encode()

    def resumed(self, message: bytes) -> list[bytes] | None:
        """Take a message that follows `resume`; return the messages to send after the last of them, None before it.

        Raises SequenceLost: the server does not know the session.
        """
        kind, _, _, _ = _HEADER.unpack_from(message)
        if kind == _FAILURE:
            told = json.loads(message[_HEADER.size :])
            if told["cause"] in _LOST:
                raise SequenceLost(told["status"], told["cause"], told["message"])
            if told["cause"] != _NOT_KEPT:
                return None  # the server closes the connection, as it cannot resume the session now
        if kind != _SESSION:
            self.take(message)
            return None
        last = json.loads(message[_HEADER.size :])["last"]
        for number in self._unanswered:
            self._steps[number].is_open = False
            if number <= last:
                self._fail(number, 409, _NOT_APPLIED, "The step was not applied; a later one was.")
        return [self.message(number) for number in self._unanswered]

    def take(self, message: bytes) -> None:
        """Take a message. Raises SequenceLost: the sequence is over."""
        kind, flags, status, number = _HEADER.unpack_from(message)
        body = message[_HEADER.size :]
        step = self._steps.get(number)
        headers, self._headers = self._headers, {}
        if kind == _HEADERS:
            self._headers = json.loads(body)
        elif step is None or step.is_answered:
            return
        elif kind == _PART:
            self._take_part(step, Part(number, bool(flags & _MORE), status, headers, body))
        elif kind == _FAILURE:
            self._take_failure(number, step, **json.loads(body))

    @property
    def _unanswered(self) -> list[int]:
        return [number for number, step in self._steps.items() if not step.is_answered]

    def _take_part(self, step: _Step, part: Part) -> None:
        try:
            unseen = step.unseen(part.number, part.body, more=part.more)
        except StepFailed as error:
            step.arrived.append(error)
            step.is_answered = True
            return
        step.arrived.append(part._replace(body=unseen))
        if not part.more:
            step.is_answered = True
            self._after = max(self._after, part.number)
            self.has_ended = self.has_ended or step.end

    def _take_failure(self, number: int, step: _Step, status: int, cause: str, message: str) -> None:
        if cause in _LOST:
            raise SequenceLost(status, cause, message)
        if cause == _LEAVING:
            return
        step.begin_again()
        if cause in _OPEN or (step.is_open and cause in _PASSING):
            step.is_open = True
            self.due.append(number)
            return
        step.is_open = False
        can_pass = cause in _PASSING or cause == _NOT_APPLIED
        if can_pass and number == self._sent and self.unanswered == 1:  # no other step is overtaken
            del self._steps[number]
            self._sent += 1
            self._steps[self._sent] = step
            self.due.append(self._sent)
        else:
            self._fail(number, status, cause, message)

    def _fail(self, number: int, status: int, cause: str, message: str) -> None:
        self._steps[number].arrived.append(StepFailed(number, status, cause, message))
        self._steps[number].is_answered = True
