"""What happened to a job without an answer, in the server's own words, for every API but TorchServe's.

TorchServe has one sentence for whatever ends a worker, and one for whatever a request finds no room in; its clients
know these. Other clients read which limit was reached, how the worker ended, or why no worker could load the model.
"""

from __future__ import annotations

from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.core.serving.serving import ServedModel, seconds_until
from torchserve_py.endpoints.failures import MEMORY_RUNS_OUT, Failure, starts_again

_TIMEOUT: Final = "ResponseTimeoutException"


def in_own_words(
    failure: Failure,
    cause: Cause,
    served: ServedModel | None,
    worker_end: str = "",
    *,
    tells_exceptions: bool = True,
) -> Failure:
    """Return the failure of a job in the server's own words; as it is where these are TorchServe's, too.

    Args:
        served: The model, where the job was for one.
        worker_end: How the worker ended that was lost with the job, as in ``exited with code 1``, if that is known.
        tells_exceptions: Whether clients may read which exception has kept the model from being loaded.
    """
    if cause is Cause.worker_died:
        how = worker_end or "has ended"
        return failure._replace(message=f"The worker that ran the request {how}; the log of the model may say more.")
    if served is None:
        return failure
    config = served.config
    if cause is Cause.response_timeout:
        text = f"The model gave no response within {config.response_timeout} s (responseTimeout)."
        return failure._replace(status=504, type=_TIMEOUT, message=text)
    if cause is Cause.no_worker:
        return failure._replace(message=_why_no_worker(served, tells_exceptions=tells_exceptions))
    if cause is Cause.queue_full:
        text = f'Model "{served.name}" has {config.job_queue_size} requests waiting already (jobQueueSize).'
        return failure._replace(message=text)
    if cause is Cause.sequence_queue_full:
        most = config.max_sequence_job_queue_size
        text = f"The sequence has {most} requests waiting already (maxSequenceJobQueueSize)."
        return failure._replace(message=text)
    if cause is Cause.sequence_capacity:
        count = served.open_sequences()
        are = "sequence is" if count == 1 else "sequences are"
        text = f"{count} {are} open, as many as maxNumSequence allows; raise it in model-config.yaml."
        return failure._replace(message=text)
    return failure


def _why_no_worker(served: ServedModel, *, tells_exceptions: bool) -> str:
    """Return why no worker takes a request, and when the next one starts."""
    if served.lacks_memory():
        text = f'Model "{served.name}" has no worker{MEMORY_RUNS_OUT}'
    elif why := served.load_failure():
        text = f"The model {served.name!r} cannot be loaded{f': {why}' if tells_exceptions else '; the log says why.'}"
    else:
        text = f'Model "{served.name}" has no worker that takes requests.'
    starts_at = served.starts_at()
    if starts_at is None:
        return text
    return f"{text}{'' if text.endswith('.') else '.'} {starts_again(seconds_until(starts_at))}"
