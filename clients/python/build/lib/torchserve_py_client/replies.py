"""What a client gets: answers, and the exceptions for everything else."""

import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
#: The header with the cause of a failure.
CAUSE: Final = "ts-error-cause"
#: An array of numpy as a file (.npy).
_ARRAY_FILE: Final = "application/x-npy"


class Answer(NamedTuple):
    """A whole answer; ``step`` is the number of the step in its session, 0 outside of one."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    step: int = 0

    @property
    def text(self) -> str:
        """The body as a text."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the value of a body that is JSON. Raises ValueError: it is not."""
        return json.loads(self.body)

    def read(self, kind: type[T]) -> T:
        """Return the body as a value of a type: ``numpy.ndarray``, ``torch.Tensor``, ``PIL.Image.Image``, a model of
        pydantic, a dataclass, ``list[float]``, …

        Those from a model of pydantic on need pydantic. Raises ValueError: the body does not fit the type.
        """
        if kind is bytes:
            return self.body  # type: ignore[return-value]
        if kind is str and not self.headers.get("content-type", "").startswith("application/json"):
            return self.text  # type: ignore[return-value]
        # A library is imported if the type is its own.
        numpy, torch, image = sys.modules.get("numpy"), sys.modules.get("torch"), sys.modules.get("PIL.Image")
        if numpy is not None and kind is numpy.ndarray:
            if self.headers.get("content-type", "") == _ARRAY_FILE:
                return numpy.load(io.BytesIO(self.body), allow_pickle=False)  # type: ignore[no-any-return]
            return numpy.asarray(self.json())  # type: ignore[no-any-return]
        if torch is not None and kind is torch.Tensor:
            return torch.as_tensor(self.json())  # type: ignore[no-any-return]
        if image is not None and kind is image.Image:
            return image.open(io.BytesIO(self.body))  # type: ignore[no-any-return]
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_json(self.body)


class RequestFailed(Exception):
    """The server has refused a request, or its handler has failed; as a text it is the server's message.

    ``status`` and ``cause`` are those of ``docs/rest-api.md``; a cause may be empty. ``errors`` are the problems of a
    request that does not fit a function's signature, each a dict as pydantic has it: ``loc``, ``msg``, ``type``.
    """

    def __init__(self, status: int, cause: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.cause = cause
        self.message = message
        self.errors: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, status: int, cause: str, body: bytes) -> "RequestFailed":
        """Return the exception for an answer, whose body may be an error of TorchServe, OpenAI or RFC 9457."""
        text = body.decode(errors="replace").strip()
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        message = text if not isinstance(told, dict) else _message_in(told) or text
        failed = cls(status, cause, message or f"the server answered {status} without a message")
        if isinstance(told, dict) and isinstance(errors := told.get("errors"), list):
            failed.errors = [each for each in errors if isinstance(each, dict)]
        return failed


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


def _message_in(told: Mapping[str, Any]) -> str:
    for name in ("message", "detail", "error", "title"):
        said = told.get(name)
        if isinstance(said, dict):
            said = said.get("message")
        if isinstance(said, str) and said:
            return said
    return ""
