"""The description of a listener's API: ``OPTIONS /``, and the deprecated ``/api-description``. No token is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchserve_py.doors.openapi import JSON, OBJECT, Operation, described, document
from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent, to_json
from torchserve_py.doors.routing import PathValues, Route
from torchserve_py.transport.http1.request import Request

_SHOW: Final = Operation("apiDescription", "The OpenAPI description of this listener", (200, 500), gives={JSON: OBJECT})


class DescriptionDoor:
    """Shows the OpenAPI document of one listener.

    Args:
        responses: Writes answers.
        routes: The tables of the listener's other doors.
    """

    def __init__(self, responses: Responses, routes: Sequence[Route]) -> None:
        self._responses = responses
        self._document = to_json(document("TorchServe APIs", described([*self.routes, *routes])))

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table."""
        deprecated = _SHOW._replace(id="api-description", method="GET", deprecated=True)
        return [
            Route("/", self._show, ("OPTIONS",), token=None, operations=(_SHOW,)),
            Route("/api-description", self._show, token=None, operations=(deprecated,)),
        ]

    def _show(self, request: Request, values: PathValues) -> Sent:
        return self._responses.send(request, 200, self._document, (JSON_TYPE,))
