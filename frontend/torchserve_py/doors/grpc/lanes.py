"""The requests of one sequence that one call holds.

A client may send ahead: of one sequence as much is submitted as its queue takes, and the rest waits here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel

#: How many requests of one call may be unanswered, and how many of the largest size.
MAX_REQUESTS: Final = 64
MAX_LARGEST_REQUESTS: Final = 4

R = TypeVar("R")


class Lane(Generic[R]):
    """The unanswered requests of one sequence.

    Args:
        model: Whose sequence it is; None where there is no such model.

    Attributes:
        waiting: Requests that were read and not submitted.
        unanswered: How many were submitted and have no part of their response yet.
        held: How many were read and are not over.
        last: What answers the last one that was submitted.
        interleaves: Whether a request may be answered before the one before it is.
    """

    def __init__(self, model: ServedModel | None) -> None:
        stateful = model is not None and model.is_stateful
        self.waiting: deque[R] = deque()
        self.unanswered = 0
        self.held = 0
        self.last: asyncio.Task[None] | None = None
        self.interleaves = stateful and model is not None and model.config.continuous
        self._limit = model.config.max_sequence_job_queue_size if stateful and model is not None else MAX_REQUESTS

    @property
    def takes_more(self) -> bool:
        """Whether the queue of the sequence is sure to take another request."""
        return self.unanswered < self._limit
