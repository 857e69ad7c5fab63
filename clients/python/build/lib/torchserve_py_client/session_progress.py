"""How far a session is, without a connection: which steps have no answer, and what messages mean.

The server applies steps in the order of their numbers, and none twice, so a step may be sent as often as need be. If
one has failed, the steps that were sent behind it fail as well, and the next one has its number.
"""

import hashlib
import json
import struct
from collections import deque
from typing import Final, NamedTuple

from .replies import SequenceLost, StepFailed

SUBPROTOCOL: Final = "sequences.binary.v1"
#: The kind, the flags, the status and the number of the step; see ``docs/live-sessions.md``.
_HEADER: Final = struct.Struct(">BBHI")
_STEP = _PART = 1
_RESUME = _SESSION = 2
_HEADERS: Final = 3
_FAILURE: Final = 4
_MORE = _END = 1
#: Causes after which this attempt of the step was not applied, and the step may be sent again.
_PASSING: Final = frozenset(
    {"sequence_moved", "sequence_store", "no_worker", "rate_limited", "too_many_tokens", "too_many_at_once"}
)
_UNKNOWN: Final = "outcome_unknown"
#: Causes after which a step is sent again: this attempt was not applied, or it cannot be told.
_AGAIN: Final = _PASSING | {_UNKNOWN, "request_running"}
#: The cause of a step behind one that was not applied.
_GAP: Final = "step_gap"
#: Causes of steps that were applied before, and whose answers are not to be had.
_APPLIED: Final = frozenset({"step_applied", "step_differs"})
#: The server closes the session after this cause, and refuses all later steps; they are sent when it is resumed.
_LEAVING: Final = "draining"
_LOST: Final = frozenset({"sequence_lost", "sequence_expired", "sequence_unknown", "version_gone"})
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

    def __init__(self, number: int, body: bytes, *, end: bool) -> None:
        self.number = number
        self.body = body
        self.end = end
        #: What the caller can take: parts of the answer, or the failure; and whether nothing follows.
        self.arrived = deque[Part | StepFailed]()
        self.is_answered = False
        self._seen, self._digest = 0, hashlib.sha256()
        self._again: bytes | None = None

    @property
    def message(self) -> bytes:
        """The message that sends the step."""
        return _HEADER.pack(_STEP, _END if self.end else 0, 0, self.number) + self.body

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
    """The steps of a session; with the token of an earlier one, it goes on with that."""

    def __init__(self, resume: str | None = None) -> None:
        self.sequence = ""
        #: How many steps may be without an answer.
        self.window = 1
        #: Whether a step was answered that the caller has marked as the last.
        self.has_ended = False
        #: The numbers of steps to be sent again a moment later.
        self.due: set[int] = set()
        #: What resumes the session over another connection, if it can.
        self.token: str | None = resume
        #: Whether it goes on with a session that this client has not begun.
        self.joins = resume is not None
        self._is_named = False
        #: The numbers of the last step that was applied, and of the last that was sent.
        self._applied = self._sent = 0
        #: Those that the caller has not taken whole, in order; one without an answer is the only one with its number.
        self._steps = deque[_Step]()
        self._headers: dict[str, str] = {}

    @property
    def token_for_others(self) -> str | None:
        """What another client can go on with; the token of a named sequence only repeats the steps of this one."""
        return None if self._is_named else self.token

    @property
    def last_applied(self) -> int:
        """The number of the last step that was applied, 0 if none was."""
        return self._applied

    @property
    def unanswered(self) -> int:
        """How many steps have no answer."""
        return len(self._unanswered)

    @property
    def is_awaited(self) -> bool:
        """Whether there are steps whose answers the caller has not taken."""
        return bool(self._steps)

    @property
    def misses_answers(self) -> bool:
        """Whether steps have no answer that were applied before one that has: resuming the session tells them."""
        return any(step.number < self._applied for step in self._unanswered)

    @property
    def has_next(self) -> bool:
        """Whether `next` has something to return."""
        return bool(self._steps and self._steps[0].arrived)

    def next(self) -> Part | StepFailed:
        """Return the next part of the answer to the oldest step that has one to come, or the step's failure."""
        step = self._steps[0]
        arrived = step.arrived.popleft()
        if step.is_answered and not step.arrived:
            self._steps.popleft()
        return arrived

    def greeted(self, message: bytes) -> None:
        """Take the first message of the first connection."""
        told = json.loads(message[_HEADER.size :])
        self.window, self.sequence = told["window"], told["sequence"]
        self._is_named = told.get("named", False)
        if not self.joins:
            self.token = told["resume"]

    def step(self, body: bytes, *, end: bool) -> tuple[int, bytes]:
        """Return the number of a new step, and the message that sends it."""
        self._sent += 1
        step = _Step(self._sent, body, end=end)
        self._steps.append(step)
        return step.number, step.message

    def messages_due(self) -> list[bytes]:
        """Return the messages of the steps that are to be sent again, in order."""
        return [step.message for step in self._unanswered if step.number in self.due]

    def resume(self) -> bytes:
        self._headers, self.due = {}, set()
        for step in self._unanswered:
            step.begin_again()
        numbers = [step.number for step in self._unanswered]
        asked = {"resume": self.token, "after": self._applied, "unanswered": numbers}
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
            if told["cause"] != _NOT_KEPT and told["cause"] not in _APPLIED:
                return None  # the server closes the connection, as it cannot resume the session now
        if kind != _SESSION:
            self.take(message)
            return None
        told = json.loads(message[_HEADER.size :])
        self.sequence = told["sequence"]
        if not self._steps:
            self._applied = self._sent = told["last"]
        return [step.message for step in self._unanswered]

    def take(self, message: bytes) -> None:
        """Take a message. Raises SequenceLost: the sequence is over."""
        kind, flags, status, number = _HEADER.unpack_from(message)
        body = message[_HEADER.size :]
        step = next((each for each in self._unanswered if each.number == number), None)
        headers, self._headers = self._headers, {}
        if kind == _HEADERS:
            self._headers = json.loads(body)
        elif step is None:
            return
        elif kind == _PART:
            self._take_part(step, Part(number, bool(flags & _MORE), status, headers, body))
        elif kind == _FAILURE:
            self._take_failure(step, **json.loads(body))

    @property
    def _unanswered(self) -> list[_Step]:
        return [step for step in self._steps if not step.is_answered]

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
            self._applied = max(self._applied, part.number)
            self.has_ended = self.has_ended or step.end

    def _take_failure(self, step: _Step, status: int, cause: str, message: str) -> None:
        if cause in _LOST:
            raise SequenceLost(status, cause, message)
        if cause == _LEAVING:
            return
        step.begin_again()
        if cause in _APPLIED:
            self._applied = max(self._applied, step.number)
        is_behind = cause == _GAP and self._unanswered[0] is not step
        if cause in _AGAIN or is_behind:
            self.due.add(step.number)
            return
        step.arrived.append(StepFailed(step.number, status, cause, message))
        step.is_answered = True
        if not self._unanswered:
            self._sent = self._applied
