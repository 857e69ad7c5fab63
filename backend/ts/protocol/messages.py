"""Messages: every kind that crosses the socket between the frontend and a worker, and the shape of each.

A worker opens two connections. ``jobs`` carries the work and is usually read by the thread (or event loop) that runs
the handler. ``heartbeat`` has a thread of its own, so that a stopped or hung process is noticed while a long inference
is not mistaken for one; `PING`, `PONG`, `WANTED`, `EVICTIONS` and `STORE_SIZE` go over it, everything else over
``jobs``.

Two rules keep both ends simple:

* every row of an `INFER` frame gets exactly one result row with ``more`` false, cancelled or not;
* rows are arrays in a fixed order, which both ends read as named tuples (`InferRow` and `ResultRow`): other objects
  would be most of the cost of a small request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

from ts.protocol.frames import LARGE_BODY, Buffer, encode

# Frontend to worker.
LOAD: Final = "load"  # [LOAD, Load]
INFER: Final = "infer"  # [INFER, [InferRow, …], Histories, Ahead or None]
CANCEL: Final = "cancel"  # [CANCEL, [job id, …]]
END_SEQUENCE: Final = "end_sequence"  # [END_SEQUENCE, [EndedSequence, …]]
INPUT: Final = "input"  # [INPUT, job id, more, body]: a further input of a job that takes several
HEALTH: Final = "health"  # [HEALTH, number]: is the model healthy? Never queued behind jobs
EXPOSE: Final = "expose"  # [EXPOSE, number]: asks for the model's own metrics; never queued behind jobs
GIVE: Final = "give"  # [GIVE, number, sequence id, move, ahead]: asks for all of a sequence; `ts.sequences.handover`
GIVE_AHEAD: Final = "give_ahead"  # [GIVE_AHEAD, number, sequence id, move, pieces]: asks for the pieces behind those
STATE: Final = "state"  # [STATE, move, bytes]: a piece of that; to the worker that takes it [STATE, sequence id, bytes]
TAKE: Final = "take"  # [TAKE, number, sequence id, bytes, version, ahead]: to have the sequence whose pieces have come
PING: Final = "ping"  # [PING, number]
CALLED: Final = "called"  # [CALLED, number, status, content type, body, error or None, more]: what came of a `CALL`
STOP: Final = "stop"  # [STOP]; earlier messages are still answered

# Worker to frontend.
HELLO: Final = "hello"  # [HELLO, Hello]
LOADED: Final = "loaded"  # [LOADED, Loaded]
RESULTS: Final = "results"  # [RESULTS, [ResultRow, …], seconds spent in the handler]
METRICS: Final = "metrics"  # [METRICS, [[name, unit, type, value, [[dimension, value], …], request ids], …]]
TAKEN: Final = "taken"  # [TAKEN, job id, count]: the model has taken so many further inputs of the job
ANSWER: Final = "answer"  # [ANSWER, number, value]: whether it is healthy; Prometheus' text format or None; or else
CALL: Final = "call"  # [CALL, job id, number, function, content type, accept, body]: the job calls another function
NEXT_PART: Final = "next_part"  # [NEXT_PART, number]: what came of the `CALL` last is used; send what follows
DROP_CALL: Final = "drop_call"  # [DROP_CALL, number]: nobody waits for `CALLED` any more
DECLARES: Final = "declares"  # [DECLARES, the model's new declarations]; see `Loaded`
LEAVING: Final = "leaving"  # [LEAVING]: the worker answers its jobs and ends, because it cannot go on; it takes no more
PONG: Final = "pong"  # [PONG, number]
EVICTIONS: Final = "evictions"  # [EVICTIONS, whether the store may drop sequences by itself, keys that it has dropped]
STORE_SIZE: Final = "store_size"  # [STORE_SIZE, bytes of the store of sequences, their number or None]
WANTED: Final = "wanted"  # [WANTED, [sequence id, …]]: other servers ask for stored sequences of this one

#: The most bytes of a `STATE`, so that no frame of a worker becomes longer than the server allows for the smallest.
STATE_PIECE: Final = 2**19
#: The answer to `GIVE` of a worker that is to be asked for pieces ahead, since the state is large.
GIVES_AHEAD: Final = "gives_ahead"
#: Why a sequence in memory is not handed over: its state cannot be encoded or decoded; the handler keeps it where the
#: server cannot find it; there is no room for it, or no worker; anything else, such as a worker that dies meanwhile.
NOT_ENCODABLE: Final = "not_encodable"
STATE_ELSEWHERE: Final = "state_elsewhere"
NO_ROOM: Final = "no_room"
NO_SUCCESSOR: Final = "no_successor"
MOVE_FAILED: Final = "failed"
MOVE_REFUSALS: Final = (NOT_ENCODABLE, STATE_ELSEWHERE, NO_ROOM, NO_SUCCESSOR, MOVE_FAILED)

#: How many calls a worker has open for requests of clients: more wait, so that they do not fill the queue of a model.
CALLS_AT_ONCE: Final = 64
#: How many it may have open, with those that calls lead to.
MAX_OPEN_CALLS: Final = 1024
#: The header of a request that is a call: how many calls lie between a client's request and it, itself included. No
#: client can send a header whose name begins with a colon.
CALL_DEPTH: Final = ":call-depth"
#: The header of a step within a workflow: the digest of the client's request, by which a repetition is told from
#: another request under the same number or id; the step's own body may differ then.
REQUEST_DIGEST: Final = ":request-digest"

JOBS_CHANNEL: Final = "jobs"
HEARTBEAT_CHANNEL: Final = "heartbeat"

#: The environment variable with the one-time token that a worker says hello with.
TOKEN_VARIABLE: Final = "TS_WORKER_TOKEN"  # noqa: S105 - the name of a variable
#: The variable with the folders in which the worker looks for the model's modules; separated as in PYTHONPATH.
FOLDERS_VARIABLE: Final = "TS_WORKER_FOLDERS"

#: The environment variable with the file descriptors of `ts.connection.batch_claims`, separated by commas.
CLAIMS_VARIABLE: Final = "TS_WORKER_CLAIMS"

#: The protocol that a row is in, and that its response is to be in; None stands for TorchServe's own forms.
OPEN_INFERENCE_REST: Final = "open_inference_rest"  # the HTTP body: JSON, or JSON and binary tensors
OPEN_INFERENCE_GRPC: Final = "open_inference_grpc"  # a serialized `inference.ModelInferRequest`
TRUSS: Final = "truss"  # the HTTP body; pseudo headers such as ``:path`` describe the request line
CUSTOM: Final = "custom"  # the same, for a route that the model itself has declared
COMPARED_ANSWERS: Final = "compared_answers"  # two answers to compare, see `ts.versions.traffic.compared_answers`
OPENPI: Final = "openpi"  # a map of msgpack with numpy arrays, as openpi's clients write it
GR00T: Final = "gr00t"  # the same, as GR00T's clients write it
SAGEMAKER_CLOSE: Final = "sagemaker_close"  # only that a sequence ends; the handler does not get it


class InferRow(NamedTuple):
    """One job, as a worker gets it.

    Attributes:
        headers: Pairs of ``bytes`` (as they came over HTTP) or ``str`` (set by the server); later pairs win.
        body: ``bytes`` (a large one arrives as a ``bytearray`` that belongs to the receiver) or, where the endpoint
        already
            knows parameters of the row, a list of ``(name, content type or None, value)``; an item without a name
            (None) is the raw body among them, which is cut into parameters as it would be alone. Of two parameters with
            one name the later counts.
        protocol: The protocol that the body is in and its answer has to be in; None for TorchServe's own forms.
        more_input: Whether the body is only the job's first input, and `INPUT` messages bring the others.
    """

    job_id: str
    headers: Sequence[tuple[Any, Any]]
    content_type: str | None
    body: Any
    protocol: str | None
    more_input: bool


#: The fields of an `InferRow`, as the server writes them: a named tuple takes three times as long to make.
WireRow: TypeAlias = tuple[str, Sequence[tuple[Any, Any]], str | None, Any, str | None, bool]


class StepHistory(NamedTuple):
    """What the server knows of a row before this worker got it: a step of a sequence whose state is stored.

    The server sends it if the row is the first of its sequence for this worker, was sent to another worker before, or
    comes from a client that only asks whether an earlier step was applied.

    Attributes:
        active_since: The moment (`ts.protocol.boot_clock`) since which the server knows that the sequence was not idle
            for too long.
        was_sent: Whether the server has sent the row before.
        asks_after: Empty, or a cause: then the row must not run, but asks whether it was applied. The answer is the
            kept answer if it was, and an error with that cause if it was not.
    """

    active_since: float
    was_sent: bool
    asks_after: str


#: By job id.
Histories = Mapping[str, StepHistory]
NO_HISTORIES: Final[Histories] = {}


class Ahead(NamedTuple):
    """That rows were sent while the worker runs others.

    Attributes:
        pipe: The worker may begin the rows only if it gets their token out of the pipe of this number
            (`ts.connection.batch_claims`); otherwise the server has taken them back.
        joins: Whether they belong to the batch of the frame before, unless the worker has begun that already.
    """

    pipe: int
    joins: bool


class InferFrame(NamedTuple):
    """The fields of an `INFER` message.

    Attributes:
        histories: What the server knows of some of the rows.
        ahead: None for rows that the worker may begin at once.
    """

    rows: Sequence[InferRow]
    histories: Histories
    ahead: Ahead | None


class EndedSequence(NamedTuple):
    """A sequence that the scheduler has closed.

    Attributes:
        reason: Why, such as `ENDED`.
        moment: When, by `ts.protocol.boot_clock`; it counts only if the sequence has expired.
    """

    sequence_id: str
    reason: str
    moment: float


#: The reason of a sequence whose last step was applied, or whose handler has ended it.
ENDED: Final = "ended"
EXPIRED_REASONS: Final = frozenset({"idle", "timeout"})


class SequenceNews(NamedTuple):
    """What a result row tells the server of sequences; clients see of it what is in the row's headers.

    Attributes:
        cause: Why a step was refused, or that its outcome is unknown; empty for an answer, and for a handler's error.
        ended: The ids of the sequences that the handler ends with the row.
        token: What names the sequence that the row is of among all that have its id; empty if it is not known.
        version: The version of the model that the sequence of a refused step belongs to; empty if that is not why.
        state_size: How many bytes the state has that a store has written with the step; 0 if it has written none.
        migration: What came of moving the sequence here from another version of the model: `MIGRATED` with the commit
            of the step, or `NOT_MIGRATED`; empty if nothing was to be moved.
        last: For a row that repeats the answer of a step that was applied before, and so ends nothing, whatever marker
            its request has: the number of the last step that was applied; 0 for others.
    """

    cause: str = ""
    ended: Sequence[str] = ()
    token: str = ""
    version: str = ""
    state_size: int = 0
    migration: str = ""
    last: int = 0


#: What `SequenceNews.migration` may be.
MIGRATED: Final = "migrated"
NOT_MIGRATED: Final = "failed"


class ResultRow(NamedTuple):
    """A part of the answer to a row, or an error.

    Attributes:
        more: Whether further rows of the job follow.
        reason: The reason phrase, empty for that of the status; of an error the name of its kind, empty for the usual.
        error: None, or the message of a failure; then ``status`` and ``headers`` are the failure's, and the body is
            empty or has the failure's details in JSON, for endpoints whose errors have some.
        news: None if there is nothing to tell of sequences, as with all models that keep none.
    """

    job_id: str
    more: bool
    status: int
    reason: str
    headers: Sequence[Sequence[str]]
    body: Buffer
    error: str | None = None
    news: SequenceNews | None = None


#: The header with which a client identifies a request of a sequence, so that the client may repeat the request.
REQUEST_ID: Final = "ts_request_id"

#: The header with the number of a step within its sequence, from 1; by it a step is recognized however late it comes.
STEP_NUMBER: Final = "ts_request_step"
#: The header with which a client names the sequence that a step belongs to, among all that have the same id.
SEQUENCE_TOKEN: Final = "ts_request_sequence_token"  # noqa: S105 - the name of a header
#: The header of an answer with the same token.
ANSWER_TOKEN: Final = "ts_sequence_token"  # noqa: S105 - the name of a header

#: The cause of a refused step whose sequence another server holds and was asked to let go; no client is told so.
HELD_ELSEWHERE: Final = "sequence_held"

#: The separator of the ids in the response header with which a handler ends sequences; no id may contain it.
SEQUENCE_ID_SEPARATOR: Final = ";"

#: The samples per second that the audio of a realtime session may have.
AUDIO_RATES: Final = range(8_000, 48_001)

#: The status of a row whose client left.
STATUS_CANCELLED: Final = 499


class Hello(TypedDict):
    """The sender of a connection. The kernel tells the process (`torchserve_py.core.workers.connection`)."""

    token: str
    channel: str
    rank: int  # among the processes that run one worker together; 0 of a single one


class Cache(TypedDict):
    """How the states of a model's sequences are kept, see `ts.sequences.steps`."""

    store: str  # its name in model-config.yaml
    module: str  # whose ``open_store(settings, cache)`` opens the store; empty if states are only in memory
    durable: bool  # whether states outlive the worker
    capacity: int  # states in memory
    path: str  # of the file
    fsync: bool
    url: str  # of Redis
    replicas: int  # of Redis, that are to have a step before its answer leaves
    owner: str  # the server's identity
    lease: float  # seconds for which a server that is not heard of keeps others from its sequences
    lifetime: float  # seconds without a step after which a sequence is abandoned
    kept: int  # of how many of the latest steps of a sequence the answers are kept, besides the first
    remembered: float  # seconds for which it is remembered that a sequence has ended or expired
    most_ids: int  # of how many request ids of a sequence digests are kept
    most_memory: int  # bytes that the states in memory may have, those in an arena on a device left out; 0: any number
    most_state: int  # bytes that a stored state may have
    checkpoint_steps: int  # how many steps a log may have before the state is written whole; 0: any number
    kept_states: int  # how many of the latest states that were written whole are kept
    rebuilt_at_once: int  # how many states are made of their logs in one call of the handler
    state_version: str  # versions of the model with the same one read each other's states; "" for none
    require_start: bool  # whether only a start marker (or step 1) begins a sequence
    restart_expired: bool


class Load(TypedDict):
    """The message body with which a worker loads its copy of the model."""

    contract: str  # how the model's code is called
    runtime: str  # the module whose ``load`` loads it as `ts.process.worker.load_model` does; '': a handler's batches
    adapters: list[str]  # modules whose ``adapt(module, function)`` makes a handler of what the model's module has
    forms: str  # the module whose ``parse_form(content_type, body)`` reads forms; '': there is none
    protocols: dict[str, str]  # of rows, with the module whose ``row_reader`` reads each for TorchServe's handlers
    observers: dict[str, str]  # modules that follow jobs, each with the argument of its ``observer``
    model_name: str
    model_version: str
    model_dir: str  # '' for the folder that the worker runs in
    manifest: dict[str, Any]
    handler: str
    gpu_id: int | None  # among the devices that the worker sees, so 0 unless it is one of several processes
    gpu_room: int | None  # bytes that the worker may take of each of its GPUs; None: there is no limit
    processors: int  # this worker's share
    batch_size: int
    continuous: bool
    asynchronous: bool
    sequences: bool
    steps: str  # the module whose ``open_steps(context, load)`` counts the steps of sequences; empty: there is none
    envelope: str | None
    decode_input_request: bool
    limit_max_image_pixels: bool
    server_version: str
    max_response_size: int
    max_call_size: int  # bytes of a `CALL`'s body; 0: the model calls no others
    metrics: list[list[Any]]  # declared metrics of handlers: type, name, unit, [dimension, …]
    header_keys: list[str]  # names of the sequence id, start and end headers
    preparations: dict[str, Any]  # modules whose ``prepare(argument)`` runs before the model counts as loaded
    cache: Cache | None  # the settings of the handler's SequenceCache; None for a stateless model


class Loaded(TypedDict):
    """The outcome of loading: a failure has status 500, or 507 when memory ran out; ``declares`` is for endpoints."""

    ok: bool
    status: int
    message: str
    traceback: str
    declares: dict[str, Any]


#: Makes a named tuple of its fields: calling its class takes more than twice as long.
_new: Final = tuple.__new__


def encode_infer(
    rows: Sequence[WireRow], histories: Histories = NO_HISTORIES, ahead: Ahead | None = None
) -> list[Buffer]:
    """Encode a batch, with the histories of some rows; bodies of `LARGE_BODY` bytes or more are not copied."""
    large = False
    for _, _, _, body, _, _ in rows:
        if len(body) >= LARGE_BODY or type(body) is list:
            large = True
    return encode((INFER, rows, histories, ahead), large=large)


def decode_infer(
    rows: Sequence[Any], histories: Mapping[str, Any] = NO_HISTORIES, ahead: Sequence[Any] | None = None
) -> InferFrame:
    """Return the records in the fields of an `INFER` message that has arrived."""
    if histories:
        histories = {job_id: StepHistory._make(history) for job_id, history in histories.items()}
    return InferFrame([_new(InferRow, row) for row in rows], histories, None if ahead is None else Ahead._make(ahead))


def encode_results(rows: Sequence[ResultRow], handler_seconds: float) -> list[Buffer]:
    """Encode results; bodies of `LARGE_BODY` bytes or more are not copied."""
    large = False
    for row in rows:
        if len(row.body) >= LARGE_BODY:
            large = True
    return encode((RESULTS, rows, handler_seconds), large=large)
