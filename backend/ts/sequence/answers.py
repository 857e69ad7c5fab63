"""A step and its answer, as it leaves and as it is kept for whoever sends the step again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from ts.protocol.messages import ResultRow

#: The header of an error that says why it happened.
CAUSE_HEADER = "ts-error-cause"
#: The header of a kept answer that says that the stream broke off when it was given.
INTERRUPTED_HEADER = "ts_stream_interrupted"
_STREAM_NEXT = "ts_stream_next"
_SEPARATOR = ";"


class Step:
    """A request of a sequence while it runs.

    Attributes:
        slot: Where its answer is kept, once that was decided.
        void: The state that it works on is not its sequence's any longer, so it cannot count.
    """

    __slots__ = (
        "_head",
        "_parts",
        "_size",
        "_too_large",
        "ends",
        "identity",
        "request_id",
        "sequence_id",
        "slot",
        "starts",
        "void",
    )

    def __init__(self, sequence_id: str, request_id: str, *, starts: bool, ends: bool) -> None:
        self.sequence_id = sequence_id
        self.request_id = request_id
        self.starts = starts
        self.ends = ends
        #: What two have in common that are one request, sent twice.
        self.identity = (sequence_id, request_id)
        self.slot: int | None = None
        self.void = False
        self._head: tuple[int, str, Sequence[Sequence[str]]] = (200, "", ())
        self._parts: list[Any] = []
        self._size = 0
        self._too_large = False

    def add(self, answer: ResultRow, limit: int) -> None:
        """Take in a part of the answer; the first brings status and headers. Beyond ``limit`` bytes none is kept."""
        _, more, status, reason, headers, body, _ = answer
        if not (more or self._size):  # the only part, as a rule: an answer is no larger than the limit
            self._head, self._parts = (status, reason, headers), [body]
            return
        if not self._parts and not self._too_large:
            self._head = (status, reason, headers)
        self._size += len(body)
        if self._size > limit:
            self._too_large = True
            self._parts.clear()
        else:
            self._parts.append(body)

    def response_ends(self, header: str) -> bool:
        """Whether the answer says in its end header that this sequence is over."""
        if not self._head[2]:
            return False
        name = header.lower()
        return any(
            key.lower() == name and self.sequence_id in map(str.strip, value.split(_SEPARATOR))
            for key, value in self._head[2]
        )

    def encoded(self, *, interrupted: bool = False) -> bytes:
        """Return the answer as it is kept: what was streamed becomes one piece."""
        if self._too_large:
            text = f"The step was applied, but its streamed response of {self._size} bytes was too large to be kept."
            return bytes(_pack((500, "", (), b"", text)))
        status, reason, headers = self._head
        if not headers and not interrupted and len(self._parts) == 1:
            only: bytes = _pack((status, reason, (), self._parts[0], None))
            return only
        if headers:
            headers = [pair for pair in headers if pair[0].lower() != _STREAM_NEXT]
        if interrupted:
            headers = [*headers, (INTERRUPTED_HEADER, "true")]
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        packed: bytes = _pack((status, reason, headers, body, None))
        return packed


def kept_answer(job_id: str, answer: bytes) -> ResultRow:
    """Return the row that answers a step which was applied before."""
    status, reason, headers, body, error = msgpack.unpackb(answer)
    return job_id, False, status, reason, headers, body, error


def error_answer(job_id: str, status: int, cause: str, message: str) -> ResultRow:
    """Return the row of a step that was not applied, and why."""
    return job_id, False, status, "", ((CAUSE_HEADER, cause),), b"", message


_pack = msgpack.Packer().pack
