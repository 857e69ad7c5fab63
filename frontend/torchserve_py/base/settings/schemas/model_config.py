"""The keys of a `model-config.yaml` that the server reads; `docs/model-config.md` has them as a table."""

from typing import Annotated, Final, Literal

from torchserve_py.base.settings.schemas.schema import Schema, key
from torchserve_py.base.settings.schemas.values import (
    MAX_INT,
    Expected,
    Flag,
    choice,
    integer,
)


def _are_gpus(value: object) -> bool:
    """Whether the GPUs exist is known only where the model is run: see `plans.precedence`."""
    return isinstance(value, list) and value != [] and all(type(each) is int and 0 <= each <= MAX_INT for each in value)


_GPUS = Expected("a list of one or more GPU numbers, each an integer from 0, for example [0, 1]", _are_gpus)
AtLeastOne = Annotated[int | None, integer(1)]
AtLeastZero = Annotated[int | None, integer(0)]
Milliseconds = Annotated[int | None, integer(0, unit="milliseconds")]
SecondsFromOne = Annotated[int | None, integer(1, unit="seconds")]

#: The keys that ask for another way to run a handler than with batches.
CONTINUOUS: Final = "continuousBatching"
ASYNCHRONOUS: Final = "asyncCommunication"


class ModelConfigFile(Schema):
    """The keys of a `model-config.yaml` that the server reads. Times are milliseconds (`_ms`) or seconds."""

    min_workers: AtLeastZero = key(
        "minWorkers",
        "workers to start; the most, too, without `maxWorkers`. 0 needs [`scaling`](scaling.md) or `loading`",
        "`models`, then `default_workers_per_model`, then one per GPU or processor",
    )
    max_workers: AtLeastOne = key(
        "maxWorkers",
        "the most workers; without `minWorkers` a limit to the number that the next place gives",
        "`minWorkers`",
    )
    batch_size: AtLeastOne = key(
        "batchSize",
        "requests in one call of the handler; with `continuousBatching`, in a worker; with `asyncCommunication` 1",
        "`models`, then 1",
    )
    max_batch_delay_ms: Milliseconds = key(
        "maxBatchDelay", "how long a request waits for a fuller batch", "`models`, then 100"
    )
    response_timeout: SecondsFromOne = key(
        "responseTimeout",
        "how long a worker can be silent about a batch before it is killed. With `asyncCommunication`: about a request"
        " before the request ends; a worker that then keeps it as long again, or is silent about all, is replaced",
        "`models`, then `default_response_timeout`",
    )
    startup_timeout: SecondsFromOne = key(
        "startupTimeout", "how long loading the model can take", "`default_startup_timeout`"
    )
    threads: AtLeastOne = key(
        "threads",
        "[threads](#threads) of PyTorch and other libraries in each worker",
        "the worker's share of the processors",
    )
    device_type: Annotated[Literal["cpu", "gpu", "auto"] | None, choice("cpu", "gpu", "auto")] = key(
        "deviceType",
        "`auto` and `gpu`: [one GPU](#what-a-worker-sees-of-the-gpus) if the server has any, else the CPU",
        "`auto`",
    )
    device_ids: Annotated[tuple[int, ...] | None, _GPUS] = key(
        "deviceIds",
        "GPUs of this model's workers, in turn, within the server's `CUDA_VISIBLE_DEVICES`",
        "all",
    )
    parallel_type: Annotated[
        Literal["", "pp", "tp", "pptp", "custom"] | None, choice("", "pp", "tp", "pptp", "custom")
    ] = key("parallelType", "how one worker uses [several GPUs](#parallel-workers)", '`""`')
    parallel_level: AtLeastZero = key(
        "parallelLevel",
        "GPUs of one worker",
        "0, or `torchrun.nproc-per-node`",
    )
    max_retry_timeout: Annotated[int | None, integer(0, unit="seconds")] = key(
        "maxRetryTimeoutInSec", "after how long a failing worker is tried only once a minute", "300"
    )
    client_timeout_ms: Milliseconds = key(
        "clientTimeoutInMills", "age at which a waiting request gets 408", "0 = never"
    )
    job_queue_size: AtLeastZero = key("jobQueueSize", "waiting requests, at most", "0 = `job_queue_size`")
    use_job_ticket: Flag = key(
        "useJobTicket", "take a request only while a worker is idle; not with sequences", "`false`"
    )
    continuous_batching: Flag = key(
        CONTINUOUS,
        "requests join the running ones between steps",
        "`false`",
    )
    sequence_batching: Flag = key(
        "sequenceBatching",
        "the model keeps state: requests of one sequence run in order, on one worker",
        "`false`",
    )
    sequence_max_idle_ms: Milliseconds = key(
        "sequenceMaxIdleMSec",
        "a sequence without requests for that long is closed",
        "none, must be > 0 with `sequenceBatching`",
    )
    sequence_timeout_ms: Milliseconds = key("sequenceTimeoutMSec", "how long a sequence can live", "0 = no limit")
    max_sequence_job_queue_size: AtLeastOne = key(
        "maxSequenceJobQueueSize", "waiting requests of one sequence, at most", "1"
    )
    max_num_sequence: AtLeastOne = key(
        "maxNumSequence", "open sequences, at most; never fewer than workers × `batchSize`", "1"
    )
    deadline_safety: Annotated[int | None, integer(0, 90, "percent")] = key(
        "deadlineSafety",
        "share of a worker's time that [guarantees](scheduling.md#sessions-with-a-guarantee) leave free",
        "10",
    )
    on_expired_sequence: Annotated[Literal["refuse", "restart"] | None, choice("refuse", "restart")] = key(
        "onExpiredSequence",
        "a request for an expired or lost sequence gets 410, or restarts it as in TorchServe",
        "`refuse`",
    )
    require_start: Flag = key(
        "requireStart",
        "only the start marker or step 1 begins a sequence (else 410 `sequence_unknown`)",
        "`false`: any request begins an unknown sequence",
    )
    remember_ended: SecondsFromOne = key(
        "rememberEndedSec",
        "how long [ended sequences are remembered](sequence-stores.md#how-long-sequences-are-kept)",
        "86400",
    )
    async_communication: Flag = key(
        ASYNCHRONOUS,
        "`handle` is a coroutine, called for [each request](handlers.md#asynchronous-handlers)",
        "`false`",
    )
    concurrency_target: AtLeastOne = key(
        "concurrencyTarget",
        "requests that one worker holds (`asyncCommunication`, Truss, MLServer)",
        "1,024",
    )
    use_venv: Flag = key("useVenv", "install the model's packages into its own virtual environment", "`false`")
