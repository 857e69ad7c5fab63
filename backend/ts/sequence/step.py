"""A step of a sequence and its answer: collected while the step runs, encoded to be kept, decoded for a repetition.

Whether a step repeats an earlier one, or is the first of a new incarnation of its sequence, depends on its start marker
and its request id, which is unique within an incarnation:

* Without the start marker, an id that the latest incarnation has seen repeats that step; even if the sequence has ended
  in the meantime, because the lost answer may be that of its last step.
* With the start marker, only the id of the incarnation's first step repeats it, and only with the same body: the client
  has lost the answer to the start. Every other id begins a new incarnation, even an id that a later step has used.
* The id of an incarnation's first step begins a new incarnation once the old one is over and had further steps: a
  client that has sent further steps has received the answer to the first.
* A client that only asks what has become of a step begins nothing: any id that the latest incarnation has seen will do.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from ts.protocol.messages import ResultRow, ended_sequences
from ts.runtimes.decoded_rows import Row
from ts.sequence.stores.store import ENDED, Lease

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


#: What `Past.only_ask` is if the client asks, not the server.
CLIENT_ASKS: Final = "not_applied"
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
        digest: The digest of the body of a step that begins an incarnation; see `ts.sequence.step`.
        index: The index of the step's last answer among the answers that leave together.
        slot: The slot in which the store keeps the step's answer; None until it is assigned.
    """

    __slots__ = (
        "_answer",
        "_is_marked_last",
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
        self.ends = self._is_marked_last = ends
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
            self.ends = self.sequence_id in ended_sequences(answer[4], end_header)
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

    def encoded(self, end_header: str, *, interrupted: bool = False) -> bytes:
        """Return the answer encoded for the store, the parts of a stream joined to one body.

        Args:
            end_header: The name of the header that says which sequences have ended. A repeated answer has it, whoever
                has ended the sequence: who asks again may not know that the request had the marker.
            interrupted: Whether the stream goes on.
        """
        _, _, status, reason, headers, body, _ = self._answer or _NOTHING_YET
        ended = ((end_header, self.sequence_id),) if self._is_marked_last else ()
        if self._size:
            if self._parts is None:
                text = f"The step was applied, but its streamed response was too large to be kept: {self._size} bytes."
                return bytes(_pack((500, "", ended, b"", text, self.digest)))
            body = b"".join(self._parts)
        if headers or self._later_headers:
            replaced = {_STREAM_NEXT, *self._later_headers}
            headers = [pair for pair in headers if pair[0].lower() not in replaced]
            headers += [pair for name, pair in self._later_headers.items() if name != _STREAM_NEXT]
        if interrupted:
            headers = [*headers, (INTERRUPTED_HEADER, "true")]
        elif ended:
            headers = [*headers, *ended]
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


_DIGEST_SIZE = 8


def is_repeated(step: Step, lease: Lease, *, restart_expired: bool, has_same_body: Callable[[], bool]) -> bool:
    """Return whether the step repeats one that was applied and whose answer is kept.

    Args:
        restart_expired: Whether a step of an expired sequence begins a new one.
        has_same_body: Returns whether the incarnation's first step had the same body; called only if that decides.
    """
    if step.history.only_ask == CLIENT_ASKS:
        return step.request_id == lease.first_id or step.request_id in lease.request_ids
    if step.request_id == lease.first_id:
        may_begin = step.starts or lease.closed == ENDED or bool(lease.closed and restart_expired)
        if may_begin and lease.closed and lease.steps:
            return False
        return not may_begin or has_same_body()
    return not step.starts and step.request_id in lease.request_ids


def digest_of(body: Any) -> bytes:
    """Return the digest of the body of a `ts.protocol.messages.InferRow`."""
    if type(body) is list:  # the order of parameters is insignificant
        body = b"".join(sorted(msgpack.packb(parameter) for parameter in body))
    return hashlib.blake2b(body, digest_size=_DIGEST_SIZE).digest()
