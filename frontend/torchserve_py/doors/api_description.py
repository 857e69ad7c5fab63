"""The description of a listener's API: ``OPTIONS /``, and the deprecated ``/api-description``. No token is needed."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.doors.errors import check_method, method_not_allowed, not_found
from torchserve_py.doors.openapi_documents import listener_document
from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent, to_json
from torchserve_py.doors.routing import ROOT, Path, Route, Routes
from torchserve_py.transport.http1.request import Request


class DescriptionDoor:
    """Shows the OpenAPI document of one listener.

    Args:
        doors: The names of the settings that open the listener's doors (``inference_address``, …).
        responses: Writes the answers.
    """

    def __init__(self, doors: Iterable[str], responses: Responses) -> None:
        doors = list(doors)
        self._allowed = "GET, OPTIONS" if "inference_address" in doors else "OPTIONS"
        self._document = to_json(listener_document(doors))
        self._responses = responses

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        return {ROOT: Route(self.options, token=None), "api-description": Route(self.show, token=None)}

    def options(self, request: Request, path: Path) -> Sent:
        """``OPTIONS /``."""
        if path:
            raise not_found()
        if request.method != "OPTIONS":
            raise method_not_allowed(self._allowed)
        return self._send(request)

    def show(self, request: Request, path: Path) -> Sent:
        """``/api-description``, any method."""
        if len(path) != 1:
            raise not_found()
        check_method(request.method)
        return self._send(request)

    def _send(self, request: Request) -> Sent:
        return self._responses.send(request, 200, self._document, (JSON_TYPE,))
