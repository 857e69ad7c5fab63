"""A model's only worker sleeps: it gets no jobs, and its handler is asked to give memory back, and later to take it.

The server asks the process itself, not by a request to the model: nothing counts it, and no batch ever waits for it.
"""

import asyncio
from typing import Final

from torchserve_py.core.models.model import Model
from torchserve_py.core.workers.worker import Worker
from ts.fleet.memory_budget.questions import SLEEP, WAKE

#: How long a handler may take to fall asleep (seconds).
_LONGEST: Final = 60.0
#: Seconds between two looks whether a worker has jobs, which their own limits end.
_LOOK: Final = 0.005
#: How much (characters) is told of what a handler has raised; the model log has it all.
_MOST_TOLD: Final = 200


class SleepFailed(Exception):
    """The handler does not sleep or wake; the message says why. Nobody knows what memory it has now."""


async def fall_asleep(worker: Worker) -> None:
    """Let the handler of a worker sleep that rests (`Dispatcher.rest`), once it has no jobs. Raises SleepFailed."""
    while worker.ready and worker.in_flight:  # noqa: ASYNC110 - the kernel tells nobody when a worker has no jobs
        await asyncio.sleep(_LOOK)
    await _ask(worker, SLEEP, _LONGEST)


async def wake(model: Model, worker: Worker) -> float:
    """Let the handler of a model's worker wake, for which it has as long as for loading.

    Return how many seconds it took. Raises SleepFailed.
    """
    return await _ask(worker, WAKE, model.config.startup_timeout)


async def _ask(worker: Worker, question: str, limit: float) -> float:
    answer = await worker.ask(question, limit)
    if isinstance(answer, float):
        return answer
    if answer is not None:
        raise SleepFailed(str(answer).partition("\n")[0][:_MOST_TOLD])
    raise SleepFailed(f"it takes longer than {limit:g} s" if worker.ready else "its process has ended")
