"""A model's only worker sleeps: its handler is asked to, and it gets no jobs until it is to wake.

The handler wakes by itself before its next batch. So what the server has to do is to hold requests back until there is
room for that.
"""

import asyncio
from typing import Final

from torchserve_py.features.sleeping.sleep_protocol import SLEEP
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.jobs.parts import JobFailed
from torchserve_py.models.model import Model
from torchserve_py.workers.worker import Worker

#: How long a handler may take to fall asleep (seconds).
_LONGEST: Final = 60.0
#: How long jobs may take that came before it slept (seconds): as long as their own limits let them.
_FINISH_LIMIT: Final = 86_400.0


class SleepFailed(Exception):
    """The handler does not sleep; the message says why. Nobody knows what memory it has now."""


async def fall_asleep(model: Model, worker: Worker) -> bool:
    """Let the handler of a model's only worker sleep, and give it no jobs from then on.

    Return False if it does not sleep: a request came meanwhile, for which it has woken. Raises SleepFailed.
    """
    dispatcher = model.dispatcher
    before = _answered(model)
    parts = dispatcher.submit(InferenceRequest((), b"", protocol=SLEEP, unbatched=True, via="server"))
    try:
        async with asyncio.timeout(_LONGEST):
            part = await parts.next()
    except TimeoutError:
        raise SleepFailed(f"it takes longer than {_LONGEST:g} s") from None
    except JobFailed as failure:
        raise SleepFailed(str(failure)) from failure
    finally:
        parts.cancel()
    if part.error is not None:
        raise SleepFailed(part.error)
    await dispatcher.retire(worker, _FINISH_LIMIT)
    if worker.ready and _answered(model) > before + 1:
        dispatcher.worker_up(worker)
        return False
    return True


def _answered(model: Model) -> int:
    """Return how many jobs of a model have ended."""
    metrics = model.dispatcher.metrics
    metrics.fold()
    return metrics.outcomes.succeeded + sum(metrics.outcomes.failures.values())
