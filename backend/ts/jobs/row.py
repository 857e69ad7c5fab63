"""A request while it runs: what the handler gets, and what is known of its answer."""

from collections.abc import Callable, Sequence
from typing import Any

from ts.context import RequestProcessor
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow


class Row:
    """One request while it runs.

    Attributes:
        data: The row's values by name, as the handler gets them.
        processor: The request's headers and the head of its response.
        streaming: Whether a part was sent, and with it the head of the response.
        sent_headers: The headers of the response when its latest part was sent.
        done: Whether the row has its last answer.
        encode: Returns the body of the answer, given the row, the result and whether further parts follow; None for
            TorchServe's own encoding.
        prepare: Called once the row's sequence is in memory, before the handler gets the row: sets `data`, or returns
            the body of an answer without the handler. Raises Failure: the request is refused. None for rows that are
            ready.
    """

    __slots__ = ("data", "done", "encode", "job_id", "prepare", "processor", "sent_headers", "streaming")

    def __init__(self, job_id: str, data: dict[str, Any], processor: RequestProcessor) -> None:
        self.job_id = job_id
        self.data = data
        self.processor = processor
        self.streaming = False
        self.sent_headers: Sequence[Sequence[str]] = ()
        self.done = False
        self.encode: Callable[[Row, Any, bool], Buffer] | None = None
        self.prepare: Callable[[], Buffer | None] | None = None


#: Returns a row as the handler sees it. Raises ts.jobs.errors.Failure: the body is not what its protocol says.
RowReader = Callable[[InferRow], Row]
