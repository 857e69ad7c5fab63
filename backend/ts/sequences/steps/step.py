"""A step of a sequence while it runs, and its answers: collected, kept, repeated, or an error instead of one."""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgpack

from ts.jobs.row import Row
from ts.protocol.messages import (
    ANSWER_TOKEN,
    HELD_ELSEWHERE,
    MIGRATED,
    SEQUENCE_ID_SEPARATOR,
    ResultRow,
    SequenceNews,
    StepHistory,
)
from ts.sequences.steps.record import KeptStep, SequenceRecord, digest_of, digest_of_sent_id
from ts.sequences.steps.rules import USUAL, Claim, Reason

#: The header that marks the kept answer of a stream that broke off.
INTERRUPTED_HEADER = "ts_stream_interrupted"
_STREAM_NEXT = "ts_stream_next"
_NOTHING_YET: Final = ResultRow("", True, 200, "", (), b"")
_NO_NEWS: Final = SequenceNews()

LOST: Final = (410, "sequence_lost")
MOVED: Final = (409, "sequence_moved")
#: Another server holds the sequence and was asked to let go; the server asks again a moment later.
HELD: Final = (409, HELD_ELSEWHERE)
VERSION_GONE: Final = (410, "version_gone")
#: The state could not be migrated, and no living server has the version that the sequence belongs to.
MIGRATION_FAILED: Final = (500, "migration_failed")
NOT_STORED: Final = (503, "sequence_store")
UNKNOWN: Final = (503, "outcome_unknown")
DAMAGED: Final = (500, "state_damaged")
#: A defect of the handler, not of the store: the state cannot be encoded or decoded, so a retry does not help.
UNREADABLE: Final = (500, "handler_error")
#: The cause where the device has failed, or its memory ran out: the handler would have been told the same.
DEVICE: Final = "handler_error"

#: The state is larger than the memory for all states.
TOO_LARGE: Final = (507, DEVICE)

NOT_TOLD: Final = (
    "It cannot be told whether the step was applied. Send it again with the same number or ts_request_id to learn what"
    " has become of it."
)
BROKEN_OFF: Final = (
    "The stream broke off after a part of it was stored. Send it again with the same number or ts_request_id to get"
    " what there was."
)

#: What `StepHistory.asks_after` is if the client asks, not the server.
CLIENT_ASKS: Final = "not_applied"
#: The history of a step that has no earlier delivery.
NEW: Final = StepHistory(math.inf, was_sent=False, asks_after="")

_pack = msgpack.Packer().pack
_name: Final = itemgetter(0)
#: Makes a named tuple of its fields: on the hot path, since calling its class takes more than twice as long.
_new: Final = tuple.__new__


class StepRefusal(NamedTuple):
    """Why the steps of a sequence cannot run.

    Attributes:
        needs_state: Whether that holds only for steps that need the stored state, and not for one that begins.
        version: The version of the model that the sequence belongs to, if that is why.
        migration: As `SequenceNews.migration`.
    """

    reason: Reason
    message: str
    needs_state: bool = False
    version: str = ""
    migration: str = ""


#: The most headers of a kept answer that is read.
_MOST_HEADERS: Final = 10_000


class KeptFields(NamedTuple):
    """An answer as it is kept; the fields are those of a `ts.protocol.messages.ResultRow`."""

    status: int
    reason: str
    headers: Sequence[Sequence[str]]
    body: bytes
    error: str | None


#: Takes the place of an answer that held what was deleted.
DELETED: Final[bytes] = _pack(KeptFields(404, "", (), b"", "The step was applied; its answer has been deleted since."))


class _Stream:
    """The parts of a streamed answer.

    Attributes:
        size: Of all bodies, in bytes.
        bodies: Those of the parts; None if they are too large to be kept.
        later_headers: The headers of all parts except the first, by name in lower case.
    """

    def __init__(self) -> None:
        self.size = 0
        self.bodies: list[Any] | None = []
        self.later_headers: dict[str, tuple[str, str]] = {}

    def add(self, answer: ResultRow, limit: int) -> None:
        self.size += len(answer.body)
        if self.size > limit:
            self.bodies = None
        elif self.bodies is not None:
            self.bodies.append(answer.body)


class Step:
    """A request of a sequence while it runs.

    Attributes:
        claim: What the client says of it.
        is_named: Whether the client can ask for its answer: by its number, or by an id of the request.
        is_marked_last: Whether the request has the end marker.
        history: Earlier deliveries of the step.
        ends: Whether the step is the last of its sequence, by the request's marker or the answer's header.
        number: Its number in its incarnation, once it runs.
        incarnation, token: The number of the incarnation and what names it, once the step runs.
        is_applied: Whether the record of the sequence counts it.
        index: The index of the step's last answer among the answers that leave together.
        headers: Those that the handler has set of the first part of the answer.
        first: The first part of the answer, once it is known; see `add`.
    """

    # What few steps have, and what only steps that run have: an instance gets it when it is set.
    claim: Claim = USUAL
    history: StepHistory = NEW
    is_named = is_marked_last = ends = is_applied = False
    number = incarnation = index = 0
    token = ""
    headers: Sequence[Sequence[str]] = ()
    first: ResultRow | None = None
    _stream: _Stream | None = None  # the usual answer has one part

    def __init__(self, row: Row, sequence_id: str) -> None:
        self.row = row
        self.sequence_id = sequence_id
        # What is read of every step: reading the defaults of a class takes several times as long.
        self.claim = USUAL
        self.is_named = self.is_applied = False

    @property
    def request_id(self) -> str:
        """The client's id of the request, else the server's."""
        return self.claim.request_id or self.row.job_id

    @property
    def kept(self) -> KeptStep:
        """What the record of the sequence has of the step."""
        claim = self.claim
        return _new(KeptStep, (self.number, claim.request_id, claim.digest))

    @property
    def id_digest(self) -> bytes:
        """The digest of the request's id; empty if the step has a number from its client, which says more."""
        claim = self.claim
        if claim.number is not None:
            return b""
        return (digest_of_sent_id if claim.names_request else digest_of)(claim.request_id)

    def add(self, answer: ResultRow, limit: int) -> None:
        """Add a part of the answer, if it is to be kept; the first carries the status, every part may carry headers.

        Args:
            limit: The size in bytes beyond which a streamed answer is not kept.
        """
        if answer.news is not None and self.sequence_id in answer.news.ended:
            self.ends = True
        if self.first is None:
            self.first = answer
            if not answer.more:
                return  # the usual case: the only part, which needs no check because no body exceeds the limit
            self._stream = _Stream()
        stream = self._stream
        if stream is not None:
            if answer is not self.first:
                stream.later_headers.update((name.lower(), (name, value)) for name, value in answer.headers)
            stream.add(answer, limit)

    def encoded(self, end_header: str, *, interrupted: bool = False) -> bytes:
        """Return the answer encoded for the store; for the arguments see `kept_fields`."""
        packed: bytes = _pack(self.kept_fields(end_header, interrupted=interrupted))
        return packed

    def kept_fields(self, end_header: str, *, interrupted: bool = False) -> KeptFields:
        """Return the answer as it is kept, without the token, the parts of a stream joined to one body.

        It names the sequence as ended, whoever has ended it: who asks again may not know that the request had the
        marker. ``end_header`` is the header for that; ``interrupted`` tells whether the stream goes on.
        """
        _, _, status, reason, _, body, _, _ = self.first or _NOTHING_YET
        headers = self.headers
        ended = ((end_header, self.sequence_id),) if self.is_marked_last else ()
        stream = self._stream
        if stream is not None:
            if stream.bodies is None:
                text = f"The step was applied, but its streamed response was too large to be kept: {stream.size} bytes."
                return KeptFields(500, "", ended, b"", text)
            body = b"".join(stream.bodies)
            replaced = {_STREAM_NEXT, *stream.later_headers}
            headers = [pair for pair in headers if pair[0].lower() not in replaced]
            headers += [pair for name, pair in stream.later_headers.items() if name != _STREAM_NEXT]
        if interrupted:
            headers = [*headers, (INTERRUPTED_HEADER, "true")]
        elif ended:
            headers = [*headers, *ended]
        return _new(KeptFields, (status, reason, headers, body if type(body) is bytes else bytes(body), None))


def answer_of(step: Step, kept: bytes, record: SequenceRecord) -> ResultRow:
    """Return the result row of a kept answer, for a repeated step.

    Raises ValueError, TypeError, AttributeError or msgpack.UnpackException: the bytes are no answer.
    """
    fields = KeptFields(*msgpack.unpackb(kept, max_array_len=_MOST_HEADERS, max_map_len=0))
    _check(fields)
    return repeated_answer(step, fields, record)


def _check(kept: KeptFields) -> None:
    """Raise TypeError if a field has another type: it may come from elsewhere, and the server trusts its workers."""
    status, reason, headers, body, error = kept
    if (type(status), type(reason), type(headers), type(body)) != (int, str, list, bytes):
        raise TypeError("its status, its reason, its headers or its body is of another type")
    if not isinstance(error, str | None) or not all([type(each) for each in pair] == [str, str] for pair in headers):
        raise TypeError("its error or one of its headers is of another type")


def repeated_answer(step: Step, kept: KeptFields, record: SequenceRecord) -> ResultRow:
    """Return the result row of a kept answer, as `answer_of` does.

    A repetition ends nothing, whatever its request and the kept headers say: it tells whether the sequence is over.
    """
    status, reason, headers, body, error = kept
    news = SequenceNews(ended=(step.sequence_id,) if record.closed else (), last=record.last)
    if error is None:
        headers, news = [*headers, (ANSWER_TOKEN, record.token)], news._replace(token=record.token)
    return ResultRow(step.row.job_id, False, status, reason, headers, body, error, news)


def news_of(headers: Sequence[Sequence[str]], end_header: str) -> SequenceNews | None:
    """Return which sequences a handler ends with these headers of an answer; ``end_header`` is the header for that."""
    if len(end_header) not in map(len, map(_name, headers)):  # as of nearly all answers
        return None
    values = [value for name, value in headers if name.lower() == end_header.lower()]
    if not values:
        return None
    return SequenceNews(ended=[each.strip() for value in values for each in value.split(SEQUENCE_ID_SEPARATOR)])


def with_state_size(answer: ResultRow, size: int) -> ResultRow:
    """Return an answer that tells the server how many bytes the state has that is written with its step."""
    news = answer.news or _NO_NEWS
    return _new(ResultRow, (*answer[:-1], _new(SequenceNews, (*news[:4], size, *news[5:]))))


def with_migration(answer: ResultRow) -> ResultRow:
    """Return an answer that tells the server that the sequence has moved here from another version with its step."""
    return answer._replace(news=(answer.news or _NO_NEWS)._replace(migration=MIGRATED))


def error_answer(job_id: str, status: int, cause: str, message: str = "", version: str = "") -> ResultRow:
    """Return the result row of a step that ends with an error; for ``cause`` and ``version`` see `SequenceNews`.

    Clients get ``message`` where the server has no words for the cause.
    """
    return ResultRow(job_id, False, status, "", (), b"", message, SequenceNews(cause, version=version))


def refusal_answer(job_id: str, refusal: StepRefusal) -> ResultRow:
    """Return the result row of a step of a sequence that cannot run."""
    answer = error_answer(job_id, *refusal.reason, refusal.message, refusal.version)
    if refusal.migration and answer.news is not None:
        return answer._replace(news=answer.news._replace(migration=refusal.migration))
    return answer


def unknown(step: Step) -> ResultRow:
    """Return the error answer ``outcome_unknown``: neither the worker nor the store knows whether the step applied."""
    return error_answer(step.row.job_id, *UNKNOWN, NOT_TOLD)
