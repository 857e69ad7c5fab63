"""A step of a sequence and its answers: collected while the step runs, kept, repeated, or an error instead of it.

Whether a step repeats an earlier one, or is the first of a new incarnation of its sequence, depends on its start marker
and its request id, which is unique within an incarnation:

* Without the start marker, an id that the latest incarnation has seen repeats that step; even if the sequence has ended
  in the meantime, because the lost answer may be that of its last step.
* With the start marker, only the id of the incarnation's first step repeats it, and only with the same body: the client
  has lost the answer to the start. Every other id begins a new incarnation, even an id that a later step has used.
* The id of an incarnation's first step begins a new incarnation once the old one is over and had further steps: a
  client that has sent further steps has received the answer to the first.
* A client that only asks what has become of a step begins nothing: any id that the latest incarnation has seen will do.
* Who cannot take the lease cannot tell which of these holds, so what may begin an incarnation gets ``outcome_unknown``.
"""

import hashlib
import logging
import math
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from ts.protocol.messages import CAUSE_HEADER, ENDED, History, ResultRow, ended_sequences
from ts.runtimes.decoded_rows import Row
from ts.sequence.stores.store import Lease, Store, StoreError

logger = logging.getLogger(__name__)

#: The header that marks the kept answer of a stream that broke off.
INTERRUPTED_HEADER = "ts_stream_interrupted"
_STREAM_NEXT = "ts_stream_next"
_NOTHING_YET: ResultRow = ("", True, 200, "", (), b"", None)

#: The error answer to a client: the status and the cause, and the message.
StepRefusal = tuple[tuple[int, str], str]
EXPIRED: Final = (410, "sequence_expired")
LOST: Final = (410, "sequence_lost")
MOVED: Final = (409, "sequence_moved")
RUNNING: Final = (409, "request_running")
NOT_STORED: Final = (503, "sequence_store")
UNKNOWN: Final = (503, "outcome_unknown")
#: A defect of the handler, not of the store: the state cannot be encoded or decoded, so a retry does not help.
UNREADABLE: Final = (500, "handler_error")
#: `Lease.closed` while this worker cannot decode the stored state: the sequence goes on for workers that can.
UNREADABLE_HERE: Final = "unreadable"

ROLLED_BACK: Final = (
    "Another request of its sequence failed meanwhile, so the sequence went back to an earlier state and the step does"
    " not count. Send it again."
)
NOT_TOLD: Final = (
    "It cannot be told whether the step was applied. Send it again with the same ts_request_id to learn what has become"
    " of it."
)
BROKEN_OFF: Final = (
    "The stream broke off after a part of it was stored. Send it again with the same ts_request_id to get what there"
    " was."
)
NOT_APPLIED: Final = "The step was not applied."

#: What `History.asks_after` is if the client asks, not the server.
CLIENT_ASKS: Final = "not_applied"
#: The history of a step that has no earlier delivery.
NEW: Final = History(math.inf, was_sent=False, asks_after="")

_pack = msgpack.Packer().pack


@dataclass(slots=True, eq=False)
class Step:
    """A request of a sequence while it runs.

    Attributes:
        sequence_id, request_id: Together they identify the step; a request sent twice has the same ids.
        starts, is_marked_last: Whether the request is marked as the first, the last of its sequence.
        history: Earlier deliveries of the step.
        is_first: Whether the step begins an incarnation of its sequence.
        digest: The digest of the body of a step that begins an incarnation; see `ts.sequence.step`.
        index: The index of the step's last answer among the answers that leave together.
        slot: The slot in which the store keeps the step's answer; None until it is assigned.
    """

    row: Row
    sequence_id: str
    request_id: str
    starts: bool
    is_marked_last: bool
    history: History
    is_first: bool = False
    digest: bytes = b""
    index: int = 0
    slot: int | None = None
    _ends_by_answer: bool = field(default=False, init=False)
    _answer: ResultRow | None = field(default=None, init=False)
    #: The bodies of a streamed answer's parts; None if they are too large, or if the only body is in `_answer`.
    _parts: list[Any] | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)
    #: The headers of all parts except the first, by name in lower case.
    _later_headers: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)

    @property
    def ends(self) -> bool:
        """Whether the step is the last of its sequence, by the request's marker or the answer's header."""
        return self.is_marked_last or self._ends_by_answer

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
            self._ends_by_answer = self.sequence_id in ended_sequences(answer[4], end_header)
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
        ended = ((end_header, self.sequence_id),) if self.is_marked_last else ()
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


def answer_of(job_id: str, kept: bytes) -> ResultRow:
    """Return the result row of a kept answer, for a repeated step."""
    status, reason, headers, body, error, _ = msgpack.unpackb(kept)
    return job_id, False, status, reason, headers, body, error


def is_repeated(step: Step, lease: Lease, store: Store, *, restart_expired: bool) -> bool:
    """Return whether the step repeats one that was applied and whose answer is kept.

    Raises StoreError: the store cannot be read.

    Args:
        restart_expired: Whether a step of an expired sequence begins a new one.
    """
    if step.history.asks_after == CLIENT_ASKS:
        return lease.has_applied(step.request_id)
    if step.request_id == lease.first_id:
        is_over = lease.closed not in {"", UNREADABLE_HERE}
        may_begin = step.starts or lease.closed == ENDED or (is_over and restart_expired)
        if may_begin and is_over and lease.further_steps:
            return False
        return not may_begin or _first_had_same_body(step, lease, store)
    return not step.starts and step.request_id in lease.request_ids


def _first_had_same_body(step: Step, lease: Lease, store: Store) -> bool:
    """Return whether the incarnation's first step had the body of this one; true if its answer is not kept."""
    kept = store.find(step.sequence_id, step.request_id, lease.incarnation)
    return kept is None or msgpack.unpackb(kept)[-1] == step.digest


def digest_of(body: Any) -> bytes:
    """Return the digest of the body of a `ts.protocol.messages.InferRow`."""
    if type(body) is list:  # the order of parameters is insignificant
        body = b"".join(sorted(msgpack.packb(parameter) for parameter in body))
    return hashlib.blake2b(body, digest_size=8).digest()


def error_answer(job_id: str, status: int, cause: str, message: str) -> ResultRow:
    """Return the result row of a step that ends with an error; ``cause`` goes into the header `CAUSE_HEADER`."""
    return job_id, False, status, "", ((CAUSE_HEADER, cause),), b"", message


def look_up(store: Store, step: Step, incarnation: int | None = None, otherwise: ResultRow | None = None) -> ResultRow:
    """Return the kept answer to a step, whoever holds its sequence.

    Args:
        incarnation: The incarnation in which the step may have been applied; None means the latest.
        otherwise: The answer if the store has none for the step; None means ``outcome_unknown``.
    """
    try:
        kept = store.find(step.sequence_id, step.request_id, incarnation)
    except StoreError as error:
        logger.error("The sequence store cannot tell whether a step was applied: %s", error)
        return unknown(step)
    if kept is None or (incarnation is None and _may_begin_incarnation(step, kept)):
        return otherwise or unknown(step)
    return answer_of(step.row.job_id, kept)


def _may_begin_incarnation(step: Step, kept: bytes) -> bool:
    """Return whether the step may begin an incarnation after that of a kept answer, as far as the store alone tells."""
    if step.request_id == step.row.job_id or step.history.asks_after == CLIENT_ASKS:
        return False  # the server's own ids never come twice
    return step.starts or bool(msgpack.unpackb(kept)[-1])


def unknown(step: Step) -> ResultRow:
    """Return the error answer ``outcome_unknown``: neither the worker nor the store knows whether the step applied."""
    return error_answer(step.row.job_id, *UNKNOWN, NOT_TOLD)
