"""What a journal says of one request: the fields of a record, made of the request, its answer and its times.

Records are made in the journal's thread, of values that the event loop has only kept.
"""

import base64
import codecs
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NotRequired, Self, TypedDict

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import Part
from ts.protocol.messages import SEQUENCE_TOKEN
from ts.protocol.request_names import name_among

#: The headers of requests that are always written: they say what the body is, or change the answer. No secret is among
#: them.
KEPT_HEADERS: Final = frozenset(
    (
        *("content-type", "content-encoding", "accept", "inference-header-content-length", "x-request-id"),
        *("x-amzn-sagemaker-custom-attributes", "x-amzn-sagemaker-inference-id", "x-amzn-sagemaker-target-model"),
        *("ts_request_priority", "ts_request_timeout", "x-request-timeout-ms", "traceparent", "user-agent"),
        *("url_path", "explain", ":endpoint"),
        *("realtime_event", "realtime_encoding", "realtime_rate", "realtime_transcription"),
    )
)
#: Never written, even if a model's configuration names them.
SECRET_HEADERS: Final = frozenset(
    (
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "sec-websocket-protocol"),
        *("x-api-key", "api-key", SEQUENCE_TOKEN, SEQUENCE_TOKEN.replace("_", "-")),
    )
)
#: The headers of answers that are not written.
_HIDDEN_OF_ANSWERS: Final = frozenset(("set-cookie", "ts_sequence_token"))

#: The number of the form that records have. It changes with a field that a reader of before would misunderstand.
FORMAT: Final = 1
TEXT: Final = "text"
BASE64: Final = "base64"
PARAMETERS: Final = "parameters"


class KeptBody(NamedTuple):
    """The beginning of a body, or the parameters in place of one, and how many bytes all of it has."""

    content: Any
    size: int
    cut: bool


class KeptRequest(NamedTuple):
    """What a record has of what the client asked, but for the body; see `jobs.call.Call`."""

    headers: Sequence[tuple[Any, Any]]
    content_type: str | None
    protocol: str | None
    sequence: SequenceRequest | None
    more_input: bool
    via: str
    request_line: tuple[str, str, str] | None

    @classmethod
    def of(cls, call: Call) -> Self:
        """Return that of a call, without the call."""
        return cls(
            *(call.headers, call.content_type, call.protocol, call.sequence),
            *(call.open_ended, call.via, call.request_line),
        )


class KeptOutcome(NamedTuple):
    """What a record has of how a job has ended; see `metrics.model_metrics.EndedJob`."""

    job_id: str
    opens: bool
    told: Cause | int
    succeeded: bool
    submitted_at: float
    sent_at: float
    ended_at: float
    trace_id: str | None
    worker_id: str

    @classmethod
    def of(cls, job: EndedJob) -> Self:
        """Return that of a job, without the job."""
        return cls(
            *(job.id, job.opens, job.told, job.succeeded, job.submitted_at, job.sent_at, job.ended_at),
            *(job.trace_id, job.worker_id),
        )


class KeptJob(NamedTuple):
    """What the event loop keeps of a job for its record.

    Attributes:
        at: When it was admitted, in seconds since 1970.
        request: What was asked, without the body.
        parts: Of each part of the answer, seconds from the admission and bytes.
        answer: The beginning of the answer.
        outcome: Of the job.
        last: The last part of the answer without its body, None if there is none.
    """

    at: float
    request: KeptRequest
    body: KeptBody
    parts: Sequence[tuple[float, int]]
    answer: KeptBody
    outcome: KeptOutcome
    last: Part | None

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        bodies = sum(len(each.content) for each in (self.body, self.answer) if isinstance(each.content, bytes))
        if isinstance(self.body.content, list):
            bodies += self.body.size
        return bodies + 2000 + 50 * len(self.parts)


class JournalRecord(TypedDict):
    """A record as it is written. Times are in seconds, ``time`` is that of the admission (ISO 8601, UTC).

    A body or an answer is text (UTF-8) or in Base64, as its form says; a body may be a list of parameters instead.
    Sizes are those before a cut. ``cause`` says why there is no answer; otherwise there is a ``status``.
    """

    #: `FORMAT`; the first records had none.
    format: NotRequired[int]
    time: str
    model: str
    version: str
    request_id: str
    sequence: str | None
    #: Whether the request is the first of the sequence for its worker.
    sequence_opens: bool
    #: The headers by which a client would name the sequence and the step so.
    sequence_headers: dict[str, str]
    #: What tells one stored sequence from others that have had its id.
    sequence_generation: str | None
    step: int | None
    via: str
    protocol: str | None
    method: str
    path: str
    route: str
    headers: dict[str, str]
    content_type: str | None
    body: Any
    body_form: str
    body_bytes: int
    body_cut: bool
    more_input: bool
    status: int | None
    cause: str | None
    failed: bool
    error: str | None
    answer_headers: dict[str, str]
    answer: str
    answer_form: str
    answer_bytes: int
    answer_cut: bool
    #: When each part of the answer came, since the admission, and its size.
    part_seconds: list[float]
    part_bytes: list[int]
    waiting_seconds: float
    running_seconds: float
    trace_id: str | None
    worker: str | None


def kept_body(body: Any, limit: int) -> KeptBody:
    """Return the beginning of a body; of parameters either all or none."""
    if isinstance(body, list | tuple):
        size = sum(_size(value) for _, _, value in body)
        return KeptBody([] if size > limit else list(body), size, size > limit)
    if body is None:
        return KeptBody(b"", 0, cut=False)
    size = len(body)
    return KeptBody(bytes(memoryview(body)[:limit]) if size > limit else bytes(body), size, size > limit)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray | memoryview) else len(str(value))


def record_of(job: KeptJob, model: str, version: str, headers: frozenset[str]) -> JournalRecord:
    """Return the record of a job; ``headers`` are the names of those that are written, in lower case."""
    request, outcome, last, sequence = job.request, job.outcome, job.last, job.request.sequence
    content, form = _written(job.body)
    answer, answer_form = _written(job.answer)
    method, path, route = request.request_line or ("", "", "")
    told = outcome.told
    sent_at = outcome.sent_at or outcome.ended_at
    token = "" if last is None or last.news is None else last.news.token
    return {
        "format": FORMAT,
        "time": datetime.fromtimestamp(job.at, UTC).isoformat(timespec="microseconds"),
        "model": model,
        "version": version,
        "request_id": name_among(request.headers) or outcome.job_id,
        "sequence": None if sequence is None else sequence.id,
        "sequence_opens": outcome.opens,
        "sequence_headers": {} if sequence is None else {n: v for n, v in sequence.headers if n != SEQUENCE_TOKEN},
        "sequence_generation": hashlib.sha256(token.encode()).hexdigest()[:16] if token else None,
        "step": None if sequence is None else sequence.step,
        "via": request.via,
        "protocol": request.protocol,
        "method": method,
        "path": _text(path),
        "route": route,
        "headers": _headers(request.headers, headers),
        "content_type": request.content_type,
        "body": content,
        "body_form": form,
        "body_bytes": job.body.size,
        "body_cut": job.body.cut,
        "more_input": request.more_input,
        "status": None if isinstance(told, Cause) else told,
        "cause": told.value if isinstance(told, Cause) else None,
        "failed": not outcome.succeeded,
        "error": None if last is None or last.error is None else _text(last.error),
        "answer_headers": {} if last is None else _answer_headers(last.headers),
        "answer": answer,
        "answer_form": answer_form,
        "answer_bytes": job.answer.size,
        "answer_cut": job.answer.cut,
        "part_seconds": [round(at, 6) for at, _ in job.parts],
        "part_bytes": [size for _, size in job.parts],
        "waiting_seconds": round(sent_at - outcome.submitted_at, 6),
        "running_seconds": round(outcome.ended_at - sent_at, 6),
        "trace_id": outcome.trace_id,
        "worker": outcome.worker_id or None,
    }


def _headers(pairs: Sequence[tuple[Any, Any]], kept: frozenset[str]) -> dict[str, str]:
    found = {}
    for name, value in pairs:
        lowered = _text(name).lower()
        if lowered in kept:
            found[lowered] = _text(value)
    return found


def _answer_headers(pairs: Sequence[Sequence[str]]) -> dict[str, str]:
    return {name.lower(): _text(value) for name, value in pairs if name.lower() not in _HIDDEN_OF_ANSWERS}


def _text(value: Any) -> str:
    """Return a value as text that can be written in UTF-8."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _written(body: KeptBody) -> tuple[Any, str]:
    """Return a body as it is written, and the form that has."""
    if isinstance(body.content, list):
        return [_parameter(*each) for each in body.content if _text(each[0]) != SEQUENCE_TOKEN], PARAMETERS
    return _text_or_base64(body.content, cut=body.cut)


def _parameter(name: Any, content_type: Any, value: Any) -> dict[str, Any]:
    raw = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()
    written, form = _text_or_base64(raw, cut=False)
    return {
        "name": None if name is None else _text(name),
        "content_type": None if content_type is None else _text(content_type),
        "value": written,
        "form": form,
    }


def _text_or_base64(content: bytes, *, cut: bool) -> tuple[str, str]:
    """Return UTF-8 as text, and anything else in Base64; a character that was cut is left out."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content, final=not cut), TEXT
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), BASE64


def content_of(written: str, form: str) -> bytes:
    """Return the bytes of a body or a value that is not of parameters. Raises ValueError: it is malformed."""
    return base64.b64decode(written, validate=True) if form == BASE64 else written.encode()
