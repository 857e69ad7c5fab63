"""A step of a sequence and its answer: collected while the step runs, encoded to be kept, decoded for a repetition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

from ts.protocol.messages import SEQUENCE_ID_SEPARATOR, ResultRow
from ts.runtimes.rows import Row
from ts.sequence.stores.store import Lease

#: The header that marks the kept answer of a stream that broke off.
INTERRUPTED_HEADER = "ts_stream_interrupted"
_STREAM_NEXT = "ts_stream_next"
#: The index of the body's digest in a kept answer; version 2 of the file store's format lacks the digest.
_DIGEST = 5
_NOTHING_YET: ResultRow = ("", True, 200, "", (), b"", None)


class Past(NamedTuple):
    """Earlier deliveries of a step, before this worker got it; see `ts.protocol.messages.History`."""

    active_since: float
    was_sent: bool
    only_ask: str


#: The past of a step that has no earlier delivery.
NEW: Final = Past(math.inf, was_sent=False, only_ask="")


class Step:
    """A request of a sequence while it runs.

    Attributes:
        sequence_id, request_id: Together they identify the step; a request sent twice has the same ids.
        starts, ends: Whether the step is marked as the first, the last of its sequence. The request sets both markers;
            the answer can set ``ends``, too.
        history: Earlier deliveries of the step.
        is_first: Whether the step begins an incarnation of its sequence.
        digest: The digest of the body of a step that begins an incarnation; see `ts.sequence.repetition`.
        index: The index of the step's last answer among the answers that leave together.
        slot: The slot in which the store keeps the step's answer; None until it is assigned.
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
        #: The bodies of a streamed answer's parts; None if they are too large, or if the only body is in `_answer`.
        self._parts: list[Any] | None = None
        self._size = 0
        #: The headers of all parts except the first, by name in lower case.
        self._later_headers: dict[str, tuple[str, str]] = {}

    def place(self, lease: Lease) -> int:
        """Return the slot in which the store keeps the step's answer, and assign it on the first call."""
        if self.slot is None:
            self.slot = lease.place(self.request_id, first=self.is_first)
        return self.slot

    def add(self, answer: ResultRow, limit: int, end_header: str) -> None:
        """Add a part of the answer; the first part carries the status, every part may carry headers.

        Args:
            limit: The size in bytes beyond which a streamed answer is not kept.
            end_header: The name, in lower case, of the response header with which a handler ends sequences.
        """
        if answer[4] and not self.ends:
            self.ends = self._is_ended_by(answer[4], end_header)
        if self._answer is None:
            self._answer = answer
            if not answer[1]:
                return  # the usual case: the only part, which needs no check because no body exceeds the limit
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
        """Return the answer encoded for the store, the parts of a stream joined to one body."""
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
    """Return the result row of a kept answer, for a repeated step."""
    status, reason, headers, body, error, *_ = msgpack.unpackb(answer)
    return job_id, False, status, reason, headers, body, error


def kept_digest(answer: bytes) -> bytes:
    """Return the body's digest in a kept answer; empty if the answer has none."""
    digest: bytes = (*msgpack.unpackb(answer), b"")[_DIGEST]
    return digest


_pack = msgpack.Packer().pack
