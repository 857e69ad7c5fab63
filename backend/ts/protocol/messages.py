"""Messages: every kind that crosses the socket between the frontend and a worker, and the shape of each.

A worker opens two connections. ``jobs`` carries the work and is read by the thread (or event loop) that runs the
handler: no lock, no thread hop. ``heartbeat`` is answered by a thread of its own, so that a stopped or hung process is
noticed while a long inference is not mistaken for one.

Two rules keep both ends simple:

* every row of an `INFER` frame gets exactly one result row with ``more`` false, cancelled or not;
* rows are plain arrays in a fixed order (see `InferRow` and `ResultRow`), because building objects for each of them
  would be most of the cost of a small request.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from ts.protocol.frames import LARGE_BODY, Buffer, encode

# Frontend to worker.
LOAD: Final = "load"  # [LOAD, Load]
INFER: Final = "infer"  # [INFER, [InferRow, …], Histories, Ahead or None]
CANCEL: Final = "cancel"  # [CANCEL, [job id, …]]
END_SEQUENCE: Final = "end_sequence"  # [END_SEQUENCE, [EndedSequence, …]]
INPUT: Final = "input"  # [INPUT, job id, more, body]: a further input of a job that takes several
HEALTH: Final = "health"  # [HEALTH, number]: is the model healthy? Never queued behind jobs
EXPOSE: Final = "expose"  # [EXPOSE, number]: asks for the model's own metrics; never queued behind jobs
PING: Final = "ping"  # [PING, number]
STOP: Final = "stop"  # [STOP]; earlier messages are still answered

# Worker to frontend.
HELLO: Final = "hello"  # [HELLO, Hello]
LOADED: Final = "loaded"  # [LOADED, Loaded]
RESULTS: Final = "results"  # [RESULTS, [ResultRow, …], seconds spent in the handler]
METRICS: Final = "metrics"  # [METRICS, [[name, unit, type, value, [[dimension, value], …], request ids], …]]
TAKEN: Final = "taken"  # [TAKEN, job id, count]: the model has taken so many further inputs of the job
HEALTHY: Final = "healthy"  # [HEALTHY, number, whether it is]
EXPOSED: Final = "exposed"  # [EXPOSED, number, Prometheus' text format; None if that has failed]
DECLARES: Final = "declares"  # [DECLARES, the model's new declarations]; see `Loaded`
LEAVING: Final = "leaving"  # [LEAVING]: the worker answers its jobs and ends, because it cannot go on; it takes no more
PONG: Final = "pong"  # [PONG, number]

JOBS_CHANNEL: Final = "jobs"
HEARTBEAT_CHANNEL: Final = "heartbeat"

#: The environment variable with the one-time token that a worker says hello with.
TOKEN_VARIABLE: Final = "TS_WORKER_TOKEN"  # noqa: S105 - the name of a variable

#: The environment variable with the file descriptors of `ts.batch_claims`, separated by commas.
CLAIMS_VARIABLE: Final = "TS_WORKER_CLAIMS"

#: The protocol that a row is in, and that its response is to be in; None stands for TorchServe's own forms.
OPEN_INFERENCE_REST: Final = "open_inference_rest"  # the HTTP body: JSON, or JSON and binary tensors
OPEN_INFERENCE_GRPC: Final = "open_inference_grpc"  # a serialized `inference.ModelInferRequest`
TRUSS: Final = "truss"  # the HTTP body; pseudo headers such as ``:path`` describe the request line
CUSTOM: Final = "custom"  # the same, for a route that the model itself has declared
OPENPI: Final = "openpi"  # a map of msgpack with numpy arrays, as openpi's clients write it

#: ``(job id, headers, content type, body, protocol, more input)``. Headers are pairs of ``bytes`` (as they came over
#: HTTP) or ``str`` (set by the server); later pairs win. The body is ``bytes`` (a large one arrives as a ``bytearray``
#: that belongs to the receiver) or, where the door already knows parameters of the row, a list of ``(name, content type
#: or None, value)``; an item without a name (None) is the raw body among them, which is cut into parameters as it would
#: be alone. Of two parameters with one name the later counts. With ``more input`` the body is the job's first input,
#: and `INPUT` messages bring the others.
InferRow = tuple[str, Sequence[tuple[Any, Any]], str | None, Any, str | None, bool]


class History(NamedTuple):
    """What the server knows of a row before this worker got it: a step of a sequence whose state is stored.

    The server sends it if the row is the first of its sequence for this worker, was sent to another worker before, or
    comes from a client that only asks whether an earlier step was applied.

    Attributes:
        active_since: The moment (monotonic seconds, which the processes of a machine share) since which the server
            knows that the sequence was not idle for too long.
        was_sent: Whether the server has sent the row before.
        asks_after: Empty, or a cause: then the row must not run, but asks whether it was applied. The answer is the
            kept answer if it was, and an error with that cause if it was not.
    """

    active_since: float
    was_sent: bool
    asks_after: str


#: By job id.
Histories = Mapping[str, History]
NO_HISTORIES: Final[Histories] = {}

#: ``(pipe, joins)``: the rows were sent while the worker runs others. The worker may begin them only if it gets their
#: token out of the pipe of this number (`ts.batch_claims`); otherwise the server has taken them back. With ``joins``
#: they belong to the batch of the frame before, unless the worker has begun that already.
Ahead = tuple[int, bool]

#: ``(sequence id, reason, moment)``: the scheduler has closed a sequence; the moment (monotonic seconds) counts only if
#: the sequence has expired.
EndedSequence = tuple[str, str, float]
#: The reason of a sequence whose last step was applied, or whose handler has ended it.
ENDED: Final = "ended"
EXPIRED_REASONS: Final = frozenset({"idle", "timeout"})

#: ``(job id, more, status, reason, headers, body, error)``. ``more`` tells whether further rows of the job follow.
#: ``error`` is None or the message of a failure; with a message, ``status`` is the failure's and the body is empty.
ResultRow = tuple[str, bool, int, str, Sequence[Sequence[str]], Buffer, str | None]

#: The header with which a client identifies a request of a sequence, so that the client may repeat the request.
REQUEST_ID: Final = "ts_request_id"

#: The separator of the ids in the response header with which a handler ends sequences; no id may contain it.
SEQUENCE_ID_SEPARATOR: Final = ";"


def ended_sequences(headers: Iterable[Sequence[str]], end_header: str) -> list[str]:
    """Return the ids of the sequences that a handler ends with these headers; ``end_header`` is in lower case."""
    values = [value for name, value in headers if name.lower() == end_header]
    return [each.strip() for value in values for each in value.split(SEQUENCE_ID_SEPARATOR)]


#: The samples per second that the audio of a realtime session may have.
AUDIO_RATES: Final = range(8_000, 48_001)

#: The header of an error response with the cause; for a step of a sequence, why the step was not applied.
CAUSE_HEADER: Final = "ts-error-cause"

#: The status of a row whose client left.
STATUS_CANCELLED: Final = 499


class Hello(TypedDict):
    """The sender of a connection. The kernel tells the process (`torchserve_py.workers.connection`)."""

    token: str
    channel: str
    rank: int  # among the processes that run one worker together; 0 of a single one


class Cache(TypedDict):
    """How the states of a model's sequences are kept, see `ts.sequence`."""

    store: str  # "memory", "file" or "redis"
    durable: bool  # whether states outlive the worker
    capacity: int  # states in memory
    path: str  # of the file
    fsync: bool
    url: str  # of Redis
    replicas: int  # of Redis, that are to have a step before its answer leaves
    owner: str  # the server's identity
    lease: float  # seconds for which a server that is not heard of keeps others from its sequences
    lifetime: float  # seconds without a step after which a sequence is abandoned
    kept: int  # of how many steps of a sequence the answers are kept
    restart_expired: bool


class Warmup(TypedDict):
    """A request that the worker runs before it says that the model is loaded."""

    file: str | None  # in the model's folder: the body; None with ``inputs``
    content_type: str | None
    inputs: list[list[Any]]  # [name, datatype, shape] of tensors of zeros
    rows: int  # such requests in one batch
    calls: int


class Load(TypedDict):
    """The message body with which a worker loads its copy of the model."""

    contract: str  # "torchserve", "truss" or "mlserver"
    model_name: str
    model_version: str
    model_dir: str  # '' for the folder that the worker runs in
    manifest: dict[str, Any]
    handler: str
    gpu_id: int | None  # among the devices that the worker sees, so 0 unless it is one of several processes
    processors: int  # this worker's share
    batch_size: int
    continuous: bool
    asynchronous: bool
    sequences: bool
    envelope: str | None
    decode_input_request: bool
    limit_max_image_pixels: bool
    server_version: str
    max_response_size: int
    metrics: list[list[Any]]  # declared metrics of handlers: type, name, unit, [dimension, …]
    header_keys: list[str]  # names of the sequence id, start and end headers
    warmup: list[Warmup]
    cache: Cache | None  # the settings of the handler's SequenceCache; None for a stateless model


class Loaded(TypedDict):
    """The outcome of loading: a failure has status 500, or 507 when memory ran out; ``declares`` is for the doors."""

    ok: bool
    status: int
    message: str
    traceback: str
    declares: dict[str, Any]


def encode_infer(
    rows: Sequence[InferRow], histories: Histories = NO_HISTORIES, ahead: Ahead | None = None
) -> list[Buffer]:
    """Encode a batch, with the histories of some rows; bodies of `LARGE_BODY` bytes or more are not copied."""
    large = False
    for row in rows:
        if len(row[3]) >= LARGE_BODY or type(row[3]) is list:
            large = True
    return encode((INFER, rows, histories, ahead), large=large)


def encode_results(rows: Sequence[ResultRow], handler_seconds: float) -> list[Buffer]:
    """Encode results; bodies of `LARGE_BODY` bytes or more are not copied."""
    large = False
    for row in rows:
        if len(row[5]) >= LARGE_BODY:
            large = True
    return encode((RESULTS, rows, handler_seconds), large=large)
