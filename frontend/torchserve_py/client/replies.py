"""What a client gets: answers, and the exceptions for everything else."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """A whole answer; ``step`` is the number of the step in its session, 0 outside of one."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    step: int = 0

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class RequestFailed(Exception):
    """The server has refused a request, or its handler has failed.

    ``status`` and ``cause`` are those of ``docs/rest-api.md``; a cause may be empty.
    """

    def __init__(self, status: int, cause: str, message: str) -> None:
        super().__init__(f"{status} {cause}: {message}" if cause else f"{status}: {message}")
        self.status = status
        self.cause = cause


class StepFailed(RequestFailed):
    """A step of a session has failed; the session goes on."""

    def __init__(self, step: int, status: int, cause: str, message: str) -> None:
        super().__init__(status, cause, message)
        self.step = step


class SequenceLost(RequestFailed):
    """The session is over: its sequence has expired, or its state is lost."""


class SessionClosed(Exception):
    """The session is over; ``code`` is the WebSocket's close code, 1006 if the server could not be reached."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the session is closed: {code} {reason}")
        self.code = code
