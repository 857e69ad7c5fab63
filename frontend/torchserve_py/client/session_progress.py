"""How far a session is, without a connection: which steps have no answer, and what messages mean."""

from __future__ import annotations

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
#: Causes after which the step was not applied, and may be sent again.
_TRANSIENT: Final = frozenset({"sequence_moved", "sequence_store", "request_running", "no_worker", "not_applied"})
_UNKNOWN: Final = "outcome_unknown"
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
    """A step without an answer; what there was of a stream is known by its length and digest."""

    def __init__(self, body: bytes, *, end: bool) -> None:
        self.body = body
        self.end = end
        self._seen, self._digest = 0, hashlib.sha256()
        self._again: bytes | None = None

    def begin_again(self) -> None:
        """Expect the answer from its beginning, of which the caller has had a part."""
        if self._seen:
            self._again = b""

    def unseen(self, number: int, body: bytes) -> bytes:
        """Return what of a part the caller has not had. Raises StepFailed: the answer begins otherwise than before."""
        if self._again is not None:
            self._again += body
            if len(self._again) < self._seen:
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
    """The steps of a session.

    Attributes:
        window: How many steps may be without an answer.
        has_ended: Whether a step was answered that the caller has marked as the last.
        arrived: Parts of answers, and failures, that the caller has not taken.
    """

    def __init__(self) -> None:
        self.sequence = ""
        self.window = 1
        self.has_ended = False
        self.arrived = deque[Part | StepFailed]()
        self._token: str | None = None
        self._after = self._sent = 0
        self._unanswered: dict[int, _Step] = {}
        self._headers: dict[str, str] = {}

    @property
    def is_resumable(self) -> bool:
        """Whether the session can go on over another connection."""
        return self._token is not None

    @property
    def unanswered(self) -> int:
        """How many steps have no answer."""
        return len(self._unanswered)

    def greeted(self, message: bytes) -> None:
        """Take the first message of the first connection."""
        told = json.loads(message[_HEADER.size :])
        self._token, self.window, self.sequence = told["resume"], told["window"], told["sequence"]

    def step(self, body: bytes, *, end: bool) -> tuple[int, bytes]:
        """Return the number of a new step, and the message that sends it."""
        self._sent += 1
        self._unanswered[self._sent] = _Step(body, end=end)
        return self._sent, self._message(self._sent)

    def resume(self) -> bytes:
        """Return the message that resumes the session."""
        self._headers = {}
        for step in self._unanswered.values():
            step.begin_again()
        asked = {"resume": self._token, "after": self._after, "unanswered": list(self._unanswered)}
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
        for number in [number for number in self._unanswered if number <= last]:
            text = "The step was not applied; a later one was."
            self.arrived.append(self._failed(number, 409, "not_applied", text))
        return [self._message(number) for number in self._unanswered]

    def take(self, message: bytes) -> bytes | None:
        """Take a message; return one to send a moment later, if a step is to be sent again.

        Raises SequenceLost: the sequence is over.
        """
        kind, flags, status, number = _HEADER.unpack_from(message)
        body = message[_HEADER.size :]
        if kind == _HEADERS:
            self._headers = json.loads(body)
        elif kind == _PART and number in self._unanswered:
            self._take_part(number, status, body, more=bool(flags & _MORE))
        elif kind == _FAILURE and number in self._unanswered:
            return self._take_failure(number, **json.loads(body))
        return None

    def _take_part(self, number: int, status: int, body: bytes, *, more: bool) -> None:
        headers, self._headers = self._headers, {}
        step = self._unanswered[number]
        try:
            unseen = step.unseen(number, body)
        except StepFailed as error:
            del self._unanswered[number]
            self.arrived.append(error)
            return
        if not more:
            del self._unanswered[number]
            self._after = number
            self.has_ended = self.has_ended or step.end
        self.arrived.append(Part(number, more, status, headers, unseen))

    def _take_failure(self, number: int, status: int, cause: str, message: str) -> bytes | None:
        if cause in _LOST:
            raise SequenceLost(status, cause, message)
        if cause == _LEAVING:
            return None
        step = self._unanswered[number]
        step.begin_again()
        if cause == _UNKNOWN:
            return self._message(number)  # asks what has become of it
        if cause in _TRANSIENT and len(self._unanswered) == 1:  # else a later step might overtake it
            del self._unanswered[number]
            self._sent += 1
            self._unanswered[self._sent] = step
            return self._message(self._sent)
        self.arrived.append(self._failed(number, status, cause, message))
        return None

    def _failed(self, number: int, status: int, cause: str, message: str) -> StepFailed:
        del self._unanswered[number]
        return StepFailed(number, status, cause, message)

    def _message(self, number: int) -> bytes:
        step = self._unanswered[number]
        return _HEADER.pack(_STEP, _END if step.end else 0, 0, number) + step.body
