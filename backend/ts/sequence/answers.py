"""A step and its answer, as it leaves and as it is kept for whoever sends the step again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

from ts.protocol.messages import SEQUENCE_ID_SEPARATOR, ResultRow
from ts.runtimes.rows import Row
from ts.sequence.stores.store import Lease

#: The header of a kept answer that says that the stream broke off when it was given.
INTERRUPTED_HEADER = "ts_stream_interrupted"
_STREAM_NEXT = "ts_stream_next"
#: Where a kept answer has the digest of the step's body; the file store's version 2 had none.
_DIGEST = 5
_NOTHING_YET: ResultRow = ("", True, 200, "", (), b"", None)


class Past(NamedTuple):
    """What was with a step before it came to this worker; see `ts.protocol.messages.History`."""

    active_since: float
    was_sent: bool
    only_ask: str


#: Nothing is known of what was before, as if it had come just now.
NEW: Final = Past(math.inf, was_sent=False, only_ask="")


class Step:
    """A request of a sequence while it runs.

    Attributes:
        row: The request itself.
        sequence_id, request_id: What two have in common that are one request, sent twice.
        starts, ends: Whether it is the first, the last of its sequence; that it is the last, its answer may say, too.
        history: What was before.
        is_first: Whether it begins an incarnation of its sequence.
        digest: Of the body, if it does; see `ts.sequence.repetition`.
        index: Where its last answer is among those that leave together with it.
        slot: Where its answer is kept, once that was decided.
    """

    __slots__ = (
        "_answer",
        "_later_headers",
        "_parts",
        "_size",
        "digest",
        "ends",
        "history",
        "index",
        "is_first",
        "request_id",
        "row",
        "sequence_id",
        "slot",
        "starts",
    )

    def __init__(
        self, row: Row, sequence_id: str, request_id: str, *, starts: bool, ends: bool, history: Past = NEW
    ) -> None:
        self.row = row
        self.sequence_id = sequence_id
        self.request_id = request_id
        self.starts = starts
        self.ends = ends
        self.history = history
        self.is_first = False
        self.digest = b""
        self.index = 0
        self.slot: int | None = None
        self._answer: ResultRow | None = None
        #: The bodies of a streamed answer: None if they are too large to be kept, or there is one, in `_answer`.
        self._parts: list[Any] | None = None
        self._size = 0
        #: The headers of parts but the first, by name in lower case.
        self._later_headers: dict[str, tuple[str, str]] = {}

    def place(self, lease: Lease) -> int:
        """Return the slot in which its answer is kept."""
        if self.slot is None:
            self.slot = lease.place(self.request_id, first=self.is_first)
        return self.slot

    def add(self, answer: ResultRow, limit: int, end_header: str) -> None:
        """Take in a part of the answer; the first brings the status, each may bring headers.

        Args:
            answer: The part.
            limit: The bytes of a streamed answer beyond which it is not kept.
            end_header: The header, in lower case, in which an answer says that sequences are over.
        """
        if answer[4] and not self.ends:
            self.ends = self._is_ended_by(answer[4], end_header)
        if self._answer is None:
            self._answer = answer
            if not answer[1]:
                return  # the only part, as a rule: an answer is no larger than the limit
            self._parts = []
        elif answer[4]:
            self._later_headers.update((name.lower(), (name, value)) for name, value in answer[4])
        self._size += len(answer[5])
        if self._size > limit:
            self._parts = None
        elif self._parts is not None:
            self._parts.append(answer[5])

    def _is_ended_by(self, headers: Sequence[Sequence[str]], end_header: str) -> bool:
        return any(
            name.lower() == end_header and self.sequence_id in map(str.strip, value.split(SEQUENCE_ID_SEPARATOR))
            for name, value in headers
        )

    def encoded(self, *, interrupted: bool = False) -> bytes:
        """Return the answer as it is kept: what was streamed becomes one piece."""
        _, _, status, reason, headers, body, _ = self._answer or _NOTHING_YET
        if self._size:
            if self._parts is None:
                text = f"The step was applied, but its streamed response was too large to be kept: {self._size} bytes."
                return bytes(_pack((500, "", (), b"", text, self.digest)))
            body = b"".join(self._parts)
        if headers or self._later_headers:
            replaced = {_STREAM_NEXT, *self._later_headers}
            headers = [pair for pair in headers if pair[0].lower() not in replaced]
            headers += [pair for name, pair in self._later_headers.items() if name != _STREAM_NEXT]
        if interrupted:
            headers = [*headers, (INTERRUPTED_HEADER, "true")]
        packed: bytes = _pack((status, reason, headers, body, None, self.digest))
        return packed


def kept_answer(job_id: str, answer: bytes) -> ResultRow:
    """Return the row that answers a step which was applied before."""
    status, reason, headers, body, error, *_ = msgpack.unpackb(answer)
    return job_id, False, status, reason, headers, body, error


def kept_digest(answer: bytes) -> bytes:
    """Return the digest of the body that was answered like that; empty where none is known."""
    digest: bytes = (*msgpack.unpackb(answer), b"")[_DIGEST]
    return digest


_pack = msgpack.Packer().pack
