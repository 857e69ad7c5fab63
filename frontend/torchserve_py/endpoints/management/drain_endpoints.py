"""The endpoint by which a server is taken out of service before it is stopped."""

from collections.abc import Iterator
from typing import Final

from torchserve_py.endpoints.openapi import Operation
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import Endpoints, PathValues, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request

_DRAIN: Final = Operation(
    "drain",
    "Take the server out of service; its process keeps running until it is stopped",
    (202,),
)


class DrainDoor(Endpoints):
    """Takes a server out of service before it is stopped."""

    def routes(self) -> Iterator[Route]:
        yield Route("/drain", self._drain, ("POST",), TokenType.management, operations=(_DRAIN,))

    def _drain(self, request: Request, values: PathValues) -> Answer:
        self.context.drain()
        delay = self.settings.drain_delay
        return json_answer({"status": f"The server is not ready any more, and refuses new work in {delay} s."}, 202)
