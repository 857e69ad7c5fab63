"""TorchServe's REST API as a dialect; KServe v1 and SageMaker's paths speak it as well."""

from typing import Final

from torchserve_py.doors.failures import Failure
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange
from torchserve_py.doors.responses import Answer, Headers, failure_body
from torchserve_py.jobs.parts import Part

_STREAM_HEADER: Final = ("ts_stream_next", "true")


class TorchServeDialect(HttpDialect):
    """Failures are TorchServe's JSON. Answers name the sequence in a header: the server may have chosen the id."""

    def __init__(self, sequence_header: str = "") -> None:
        self._sequence_header = sequence_header

    def failure(self, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
        body, headers = failure_body(failure)
        return Answer(failure.status, body, headers if exchange is None else self._named(headers, exchange))

    def answer(self, exchange: HttpExchange, part: Part) -> Answer:
        headers = part.headers if exchange.inference.sequence is None else self._named(part.headers, exchange)
        return Answer(part.status, part.body, headers, part.reason)

    def opening(self, exchange: HttpExchange, first: Part) -> Answer:
        headers = self._named(first.headers, exchange)
        if not _has(headers, _STREAM_HEADER[0]):
            headers = (*headers, _STREAM_HEADER)
        return Answer(first.status, b"", headers, first.reason)

    def _named(self, headers: Headers, exchange: HttpExchange) -> Headers:
        """Add the header that names the sequence, unless the handler has set it."""
        sequence = exchange.inference.sequence
        if sequence is None or _has(headers, self._sequence_header):
            return headers
        return (*headers, (self._sequence_header, sequence.id))


def _has(headers: Headers, name: str) -> bool:
    return name.lower() in [each.lower() for each, _ in headers]


#: The dialect of routes that name no other.
TORCHSERVE_DIALECT: Final = TorchServeDialect()
