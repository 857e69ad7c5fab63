"""One request on its way through a workflow, as the door that waits for its answer sees it: a job with one part."""

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from typing import Any

from torchserve_py.jobs.parts import Part, Parts
from torchserve_py.workflows.errors import NodeFailed

logger = logging.getLogger(__name__)


class WorkflowParts(Parts):
    """The answer of a workflow; ``failure`` names the node that gave no answer, if one did not."""

    __slots__ = ("failure",)

    failure: NodeFailed | None


class WorkflowRun:
    """Runs a workflow for one request; its reader gives up by cancelling ``parts``.

    Args:
        answer: Gives the answer, or raises `NodeFailed`.
    """

    def __init__(self, answer: Coroutine[Any, Any, bytes]) -> None:
        self.parts = WorkflowParts(str(uuid.uuid4()), None, self)
        self.parts.failure = None
        self.task = asyncio.create_task(self._run(answer))
        self.task.add_done_callback(lambda _: answer.close())  # it may not have begun when the client left

    def was_read(self, parts: Parts) -> None:
        """Do nothing: an answer has one part."""

    def gave_up(self, parts: Parts) -> None:
        """End the run: the client has left."""
        self.task.cancel()

    async def _run(self, answer: Coroutine[Any, Any, bytes]) -> None:
        try:
            self._deliver(body=await answer)
        except NodeFailed as error:
            self.parts.failure = error
            if error.cause is None:
                self._deliver(error=str(error))
            else:
                self.parts.fail(error.cause)
        except Exception as error:
            logger.exception("Workflow request %s failed", self.parts.job_id)
            self._deliver(error=str(error))

    def _deliver(self, *, body: bytes = b"", error: str | None = None) -> None:
        status, headers = (200, [["content-type", "application/json"]]) if error is None else (500, [])
        self.parts.deliver(Part(self.parts.job_id, False, status, "", headers, body, error))
