"""Failures: the one mapping from exceptions and causes to HTTP status, exception name and message.

Statuses, names and messages are TorchServe's if it has the case. Where TorchServe has one text for several causes,
``cause`` tells them apart; HTTP endpoints send it as the header ``ts-error-cause``. Endpoints of other protocols
translate it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.core.archive.errors import StatusError
from torchserve_py.core.serving import errors as model_errors
from torchserve_py.core.serving.serving import ServedModel, seconds_until
from torchserve_py.net.http1.errors import BadQuery, BadResponse, BodyError, BodyTooLarge, BodyTooSlow
from torchserve_py.net.request_budget import NoRoomError

#: The header of an answer with the cause of a failure.
CAUSE_HEADER: Final = "ts-error-cause"
#: The cause of a failure that a client has made: its request does not fit the model, or the handler refuses it.
INVALID_REQUEST: Final = "invalid_request"
#: The cause of a failure that asks for something that is not there, or is not the key's.
NOT_FOUND: Final = "not_found"
#: The type of the error of a request for something that is not there.
_NOT_THERE: Final = "NotFound"
INTERNAL: Final = "InternalServerException"
#: The type of a failure whose key is missing or is not one of those that the server has made.
INVALID_KEY: Final = "InvalidKeyException"
RETRY_AFTER: Final = ("Retry-After", "1")
UNAVAILABLE: Final = "ServiceUnavailableException"

_IF_SEQUENCE: Final = (
    " If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
NO_WORKER_TEXT: Final = (
    f" has no worker to serve inference request. Please use scale workers API to add workers.{_IF_SEQUENCE}"
)
MEMORY_RUNS_OUT: Final = ". Its workers do not start, because memory runs out."
#: The same for a model whose workers follow the load: nobody has to add any.
_NO_WORKER_YET: Final = (
    " has no worker to serve inference request. The server adds workers as the load asks for; GET /models/{model} tells"
    f" why one does not start.{_IF_SEQUENCE}"
)
#: Headers of an error that the server sets, or that describe what it writes.
_NOT_THE_MODELS: Final = frozenset((CAUSE_HEADER, "content-type", "content-encoding"))


class Failure(NamedTuple):
    """An error as a client sees it: an HTTP status, TorchServe's exception name, a message for people, and the cause.

    ``cause`` is empty if status and type suffice. ``overloaded``: the same request may succeed a moment later, so the
    answer says when to try again: in ``retry_after`` seconds.
    ``allow`` names the methods of the path, for status 405. ``details`` is JSON, for
    APIs whose errors have details. ``more_headers`` are the model's.
    """

    status: int
    type: str
    message: str
    cause: str = ""
    overloaded: bool = False
    allow: str = ""
    details: bytes | bytearray = b""
    more_headers: Sequence[Sequence[str]] = ()
    retry_after: int = 1

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers that come with the status, whatever the dialect."""
        named = [
            (CAUSE_HEADER, self.cause),
            ("Allow", self.allow),
            ("Retry-After", str(self.retry_after) if self.overloaded else ""),
        ]
        own = [(name, value) for name, value in self.more_headers if name.lower() not in _NOT_THE_MODELS]
        return [*[(name, value) for name, value in named if value], *own]


class EndpointError(Exception):
    """An endpoint refuses a request, or a job failed; ``failure`` is the answer to the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


#: Exceptions that say what is wrong with a request, a model or an archive; any other is a defect of the server.
EXPECTED_ERRORS: Final = (
    *(EndpointError, StatusError, model_errors.ModelError),
    *(BadQuery, BodyError, NoRoomError, BadResponse),
)


def bad_request(message: str) -> EndpointError:
    """Return the error for wrong input; ``message`` says what is wrong and what would be right."""
    return EndpointError(Failure(400, "BadRequestException", message))


def not_found() -> EndpointError:
    """Return the error for an unknown path."""
    message = "Requested resource is not found, please refer to API document."
    return EndpointError(Failure(404, "ResourceNotFoundException", message))


def method_not_allowed(allow: str) -> EndpointError:
    """Return the error for a method that the path lacks (or that is switched off); ``allow`` names its methods."""
    message = "Requested method is not allowed, please refer to API document."
    return EndpointError(Failure(405, "MethodNotAllowedException", message, allow=allow))


def unsupported(message: str) -> EndpointError:
    """Return the error for what an API has and this server has not; ``message`` says what to do instead."""
    return EndpointError(Failure(501, "NotImplementedException", message))


def unreadable_request(status: int, message: str) -> Failure:
    """Return the failure for a client that sent no request.

    It was too slow (408), its bytes are not HTTP within the limits (400), or its connection is above the limit (503).
    """
    if status == 503:
        return too_many_connections(message)
    if status == 408:
        return Failure(status, "RequestTimeoutException", message)
    return Failure(status, "BadRequestException", f"Invalid HTTP message. {message}".rstrip())


def too_many_connections(message: str) -> Failure:
    """Return the failure for a connection above the limit."""
    return Failure(503, UNAVAILABLE, message, "too_many_connections", overloaded=True)


_MODEL_ERRORS: Final[dict[type[Exception], tuple[int, str]]] = {
    model_errors.BadParameter: (400, "BadRequestException"),
    model_errors.DependencyError: (400, "ModelException"),
    model_errors.InvalidModel: (400, "InvalidModelException"),
    model_errors.DefaultVersionInUse: (403, "InvalidModelVersionException"),
    model_errors.ModelNotFound: (404, "ModelNotFoundException"),
    model_errors.ModelVersionNotFound: (404, "ModelVersionNotFoundException"),
    model_errors.UnregisterTimeout: (408, "RequestTimeoutException"),
    model_errors.ArchiveInUse: (409, "ConflictStatusException"),
    model_errors.VersionConflict: (409, "ConflictStatusException"),
    model_errors.VersionNotReady: (409, "ConflictStatusException"),
    model_errors.NotEnoughDevices: (500, "WorkerInitializationException"),
    model_errors.NoDescribeWorker: (503, UNAVAILABLE),
    model_errors.DescriptionFailed: (503, UNAVAILABLE),
    model_errors.ShuttingDown: (503, UNAVAILABLE),
}


def failure_of(error: Exception) -> Failure:
    """Return the failure for an exception; any but `EXPECTED_ERRORS` is internal, under its class name."""
    if isinstance(error, EndpointError):
        return error.failure
    if isinstance(error, BadQuery):
        return Failure(400, "BadRequestException", str(error))
    if isinstance(error, BodyError):
        return _of_body(error)
    if isinstance(error, BadResponse):
        return Failure(500, INTERNAL, f"The handler set {error}.")
    if isinstance(error, NoRoomError):
        return Failure(503, UNAVAILABLE, str(error), "too_many_bytes", overloaded=True)
    if isinstance(error, StatusError):
        return Failure(error.status, error.error_type, str(error))
    if isinstance(error, model_errors.WorkersFailed):
        # The worker's message, such as the exception in the handler, names what the caller has to repair.
        reason = "" if error.__cause__ is None else f": {error.__cause__}"
        return Failure(error.status, "ConflictStatusException" if error.status == 409 else INTERNAL, f"{error}{reason}")
    if isinstance(error, model_errors.ModelAwaited):
        return Failure(503, UNAVAILABLE, str(error), Cause.not_loaded.value, overloaded=True)
    for kind, (status, name) in _MODEL_ERRORS.items():
        if isinstance(error, kind):
            return Failure(status, name, str(error))
    return Failure(500, type(error).__name__, str(error))


def _of_body(error: BodyError) -> Failure:
    if isinstance(error, BodyTooLarge):
        message = f"The request body is larger than max_request_size ({error.limit} bytes)."
        return Failure(413, "BadRequestException", message)
    if isinstance(error, BodyTooSlow):
        return unreadable_request(408, str(error))
    return unreadable_request(400, f"The request body could not be read. {error}")


def is_clients_mistake(status: int) -> bool:
    """Return whether a handler that fails with this status says that the request is wrong."""
    return 400 <= status < 500


def handler_failure(
    status: int,
    message: str,
    headers: Sequence[Sequence[str]] = (),
    details: bytes | bytearray = b"",
    kind: str = "",
) -> Failure:
    """Return the failure for a row whose handler raised an exception or set an error status; ``kind`` is its type.

    A status below 500 says that the client has made a mistake, and is no error of the handler.
    """
    cause = INVALID_REQUEST if is_clients_mistake(status) else HANDLER_ERROR
    if kind == _NOT_THERE:
        cause = NOT_FOUND
    return Failure(status, kind or INTERNAL, message, cause, details=details, more_headers=headers)


_NO_WORKER: Final = (503, UNAVAILABLE, "{named}" + NO_WORKER_TEXT)
_NAMED: Final = 'sequence "{sequence}" of model "{model}"'
#: The same at the beginning of a sentence.
_SUBJECT: Final = f"S{_NAMED[1:]}"
_TOO_MANY: Final = "TooManyRequestsException"
_START_AGAIN: Final = "Please start a new sequence."
_CAUSES: Final[dict[Cause, tuple[int, str, str]]] = {
    Cause.no_worker: _NO_WORKER,
    Cause.queue_full: _NO_WORKER,
    Cause.overloaded: (
        503,
        UNAVAILABLE,
        'Model "{model}" is overloaded: it could not have answered the request within its time limit.',
    ),
    Cause.not_loaded: (
        503,
        UNAVAILABLE,
        'Model "{model}" is not loaded, and cannot be loaded within the time limit of the request.',
    ),
    Cause.sequence_queue_full: _NO_WORKER,
    Cause.sequence_capacity: _NO_WORKER,
    Cause.draining: (503, UNAVAILABLE, "The server is shutting down and accepts no new work."),
    Cause.interrupted: (
        500,
        INTERNAL,
        "The server was stopped while it ran the request, which may have had its effect or not.",
    ),
    Cause.unregistered: (503, UNAVAILABLE, 'Model "{model}" was unregistered before it answered.'),
    Cause.deadline_missed: (
        504,
        "DeadlineMissedException",
        'Model "{model}" could not have answered by the deadline of the request, which was dropped and not applied.',
    ),
    Cause.deadline_capacity: (
        503,
        UNAVAILABLE,
        'Model "{model}" has no room for one more session in whose period every step would be in time.',
    ),
    Cause.sequence_expired: (410, "SequenceExpiredException", f"{_SUBJECT} has expired. {_START_AGAIN}"),
    Cause.sequence_lost: (410, "SequenceLostException", f"The state of {_NAMED} was lost. {_START_AGAIN}"),
    Cause.sequence_ended: (410, "SequenceEndedException", f"{_SUBJECT} has ended. {_START_AGAIN}"),
    Cause.sequence_unknown: (
        410,
        "SequenceUnknownException",
        f"There is no {_NAMED} that this request could continue: none was started, or it has ended. {_START_AGAIN}",
    ),
    Cause.sequence_open: (
        409,
        "SequenceOpenException",
        f"{_SUBJECT} is open under another token. Only a request with the start marker ends it and begins another.",
    ),
    Cause.version_gone: (
        410,
        "VersionGoneException",
        f"{_SUBJECT} belongs to a version of the model that no server has any more. {_START_AGAIN}",
    ),
    Cause.migration_failed: (
        500,
        INTERNAL,
        f"{_SUBJECT} belongs to a version of the model that no server has any more, and its state cannot be migrated."
        " The state is kept. The request was not applied; the model log says why.",
    ),
    Cause.state_damaged: (
        500,
        INTERNAL,
        f"What the store has of {_NAMED} is damaged. The request was not applied; the model log says what is wrong.",
    ),
    Cause.step_applied: (
        409,
        "StepAppliedException",
        f"This step of {_NAMED} was applied before, and its answer is not kept any more.",
    ),
    Cause.step_differs: (
        409,
        "StepDiffersException",
        f"This step of {_NAMED} was applied before, with another body or as another call. This one was not applied.",
    ),
    Cause.step_gap: (
        409,
        "StepGapException",
        f"This step of {_NAMED} cannot be applied, because a step before it is missing or has failed.",
    ),
    Cause.sequence_moved: (
        409,
        "SequenceMovedException",
        f"{_SUBJECT} is run by another server or version, or has gone back to an earlier state because another request"
        " of it failed; this request had no effect.",
    ),
    Cause.sequence_store: (
        503,
        UNAVAILABLE,
        f"The state of {_NAMED} cannot be read or stored now. The request does not count; the model log says why.",
    ),
    Cause.request_running: (409, "RequestRunningException", f"The same request of {_NAMED} is still running."),
    Cause.not_applied: (
        409,
        "RequestNotAppliedException",
        f"The request of {_NAMED} was sent before, and was not applied.",
    ),
    Cause.outcome_unknown: (
        503,
        UNAVAILABLE,
        f"It cannot be told whether this request of {_NAMED} was applied. Send it again with the same ts_request_id to"
        " learn what has become of it.",
    ),
    Cause.worker_died: (500, INTERNAL, "Worker died."),
    Cause.response_timeout: (500, INTERNAL, "Worker died."),
    Cause.client_timeout: (408, "RequestTimeoutException", "The request expired before a worker could run it."),
    Cause.rate_limited: (429, _TOO_MANY, "This key has used up its limit of requests per second."),
    Cause.too_many_at_once: (429, _TOO_MANY, "This key has as many requests at once as its limit allows."),
    Cause.too_many_tokens: (429, _TOO_MANY, "This key has used up its limit of tokens per second."),
    Cause.too_many_sequences: (429, _TOO_MANY, "This key has as many sequences open as its limit allows."),
    Cause.cancelled: (499, INTERNAL, "The request was cancelled."),
}

_OVERLOAD: Final = frozenset(
    {Cause.no_worker, Cause.draining, Cause.queue_full, Cause.sequence_queue_full, Cause.sequence_capacity}
    | {Cause.overloaded, Cause.not_loaded, Cause.sequence_moved, Cause.sequence_store, Cause.request_running}
    | {Cause.deadline_capacity}
    | {Cause.rate_limited, Cause.too_many_at_once, Cause.too_many_tokens, Cause.too_many_sequences}
)


def failure_of_job(
    cause: Cause,
    model: str,
    version: str | None,
    sequence_id: str | None = None,
    served: ServedModel | None = None,
) -> Failure:
    """Return the failure for a job that ended without an answer.

    Args:
        version: The one that the client named.
        served: The model, where the job was for one.
    """
    status, name, text = _CAUSES[cause]
    retry_after = 1
    if served is not None and text == _NO_WORKER[2]:
        if served.config.follows_load:
            text = f"{{named}}{_NO_WORKER_YET}"
        if cause is Cause.no_worker and served.lacks_memory():
            text += MEMORY_RUNS_OUT
        if cause is Cause.no_worker and (starts_at := served.starts_at()) is not None:
            seconds = seconds_until(starts_at)
            text += f"{'' if text.endswith('.') else '.'} {starts_again(seconds)}"
            retry_after = max(1, seconds)
    # The unbalanced quote behind the version is TorchServe's, and part of the message that clients know.
    named = f'Model "{model}"' if version is None else f'Model "{model}" Version {version}"'
    message = text.format(named=named, model=model, sequence=sequence_id)
    return Failure(status, name, message, cause.value, cause in _OVERLOAD, retry_after=retry_after)


def starts_again(seconds: int) -> str:
    """Return the sentence that tells when the next worker is started of a model whose workers all fail."""
    return f"Its workers fail; the next one starts in {seconds} s."
