"""The Open Inference endpoints that TorchServe has, served with ``ts_open_inference_protocol=true``."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from torchserve_py.api.errors import not_found
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.routing import Path, Route, Routes
from torchserve_py.api.token_authorization import TokenType
from torchserve_py.version import __version__

#: By path; the misspelt key is TorchServe's, and part of its API.
_ANSWERS: Final[dict[Path, dict[str, Any]]] = {
    ("v2",): {"name": "Torchserve", "version": __version__, "extenstion": ["kserve", "kubeflow"]},
    ("v2", "health", "live"): {"live": True},
    ("v2", "health", "ready"): {"ready": True},
}


class OpenInferenceDoor:
    """Answers ``/v2``, ``/v2/health/live`` and ``/v2/health/ready``."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        return {"v2": Route(self.show, TokenType.inference)}

    async def show(self, request: web.BaseRequest, path: Path) -> Sent:
        """A path under ``/v2`` that is no inference; any method."""
        if len(path) > 4 and "versions" in path:
            error = {"error": "Model versioning is not yet supported."}
            return await self._responses.send_json(request, 501, error)
        answer = _ANSWERS.get(path)
        if answer is None:
            raise not_found()
        return await self._responses.send_json(request, 200, answer)
