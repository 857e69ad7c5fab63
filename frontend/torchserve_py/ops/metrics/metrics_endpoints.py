"""The endpoint for Prometheus."""

from collections.abc import Iterator
from time import monotonic
from typing import Final

from torchserve_py.base.metrics.families import METRICS_TYPE
from torchserve_py.endpoints.openapi import TEXT, Operation, Parameter
from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import READING, Endpoints, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.net.turns import running_turns

_METRICS: Final = Operation(
    "metrics",
    "Metrics in Prometheus' text format",
    (200, 500),
    (Parameter("name[]", "Names of the metrics to show, all if none is given", "array"),),
    gives={METRICS_TYPE: TEXT},
)


class MetricsEndpoints(Endpoints):
    """Shows the server's metrics; no token is needed."""

    def routes(self) -> Iterator[Route]:
        """Yield the table. Further segments of the path are ignored, as in TorchServe."""
        yield Route("/metrics", self._show, READING, token=None, operations=(_METRICS,))
        yield Route("/metrics/{rest:path}", self._show, READING, token=None)

    async def _show(self, request: Request, values: PathValues) -> Answer:
        """Show all series, or those that the query names (``name[]``)."""
        names = {value for name, value in request.query if name == "name[]"}
        turns, lines, written = running_turns(), list[str](), list[bytes]()
        end = turns.end_of_slice()
        for line in self.context.metrics.expose(names or None):
            lines.append(line)
            if monotonic() > end:
                written.append("".join(lines).encode())
                lines.clear()
                await turns.next()
                end = turns.end_of_slice()
        written.append("".join(lines).encode())
        return Answer(200, b"".join(written), (("content-type", METRICS_TYPE),))
