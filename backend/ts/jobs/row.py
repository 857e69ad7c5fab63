"""A request while it runs: what the handler gets, its headers, and what is known of its answer."""

from collections.abc import Callable, Sequence
from typing import Any

from ts.context import RequestProcessor, WireText
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow


class Row(RequestProcessor):
    """One request while it runs; to its handler, the request's headers and the head of its response.

    Args:
        wire_headers, value_types: Those of a `RequestProcessor`.

    Attributes:
        data: The row's values by name, as the handler gets them.
        streaming: Whether a part was sent, and with it the head of the response.
        sent_headers: The headers of the response when its latest part was sent.
        done: Whether the row has its last answer.
        encode: Returns the body of the answer, given the row, the result and whether further parts follow; None for
            TorchServe's own encoding.
        prepare: Called once the row's sequence is in memory, before the handler gets the row: sets `data`, or returns
            the body of an answer without the handler. Raises Failure: the request is refused. None for rows that are
            ready.
    """

    streaming = False
    sent_headers: Sequence[Sequence[str]] = ()
    done = False
    encode: Callable[["Row", Any, bool], Buffer] | None = None
    prepare: Callable[[], Buffer | None] | None = None

    def __init__(
        self,
        job_id: str,
        data: dict[str, Any],
        wire_headers: Sequence[tuple[WireText, WireText]],
        value_types: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.job_id = job_id
        self.data = data
        self._request_header = None
        self._wire_headers = wire_headers
        self._value_types = value_types
        # What is read of every row: reading the defaults of a class takes several times as long.
        self.streaming = self.done = self._has_status = False
        self._by_name = self._response_header = None
        self.encode = self.error = None


#: Returns a row as the handler sees it. Raises ts.jobs.errors.RowFailure: the body is not what its protocol says.
RowReader = Callable[[InferRow], Row]
