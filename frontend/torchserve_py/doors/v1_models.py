"""Which models there are, and whether one is ready: what clients of KServe v1 and of OpenAI's interface ask.

    GET /                    KServe v1: the server is alive
    GET /v1/models           both: the models
    GET /v1/models/{model}   KServe v1: whether it is ready; OpenAI: what it is

Both interfaces have the same paths for the last two, so their answers have the members of both. Trusses answer for
themselves, in `api.truss`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.open_inference.descriptions import model_ready
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import ROOT, Path, Route, Routes
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving

_READING: Final = ("GET", "HEAD")
_OWNER: Final = "torchserve-py"


class V1ModelsDoor:
    """Lists the models that requests without a version get, and tells whether they are ready.

    Args:
        serving: The models.
        responses: Writes the answers.
    """

    def __init__(self, serving: Serving, responses: Responses) -> None:
        self._serving = serving
        self._responses = responses
        #: OpenAI's interface has a time for every model; of all of them it is when the server began to serve.
        self._created = int(time.time())

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        return {
            ROOT: Route(self.alive, token=None, claims=lambda path: not path),
            "v1": Route(self.models, TokenType.inference, claims=_is_of_models, methods=_READING),
        }

    def alive(self, request: Request, path: Path) -> Sent | None:
        """``GET /``; the other methods are not for this door."""
        if request.method not in _READING:
            return None
        return self._responses.send_json(request, 200, {"status": "alive"})

    async def models(self, request: Request, path: Path) -> Sent:
        """``GET /v1/models`` and ``GET /v1/models/{model}``.

        Raises:
            ModelNotFound: No such model.
        """
        if len(path) == 2:
            names = [model.name for model in self._serving.models()]
            listed = {"object": "list", "data": [self._described(name) for name in names], "models": names}
            return self._responses.send_json(request, 200, listed)
        name = path[2]
        ready = await model_ready(self._serving, self._serving.get(name))
        described = {**self._described(name), "name": name, "ready": ready}
        return self._responses.send_json(request, 200 if ready else 503, described)

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": _OWNER}


def _is_of_models(path: Path) -> bool:
    return path[1:2] == ("models",) and (len(path) == 2 or (len(path) == 3 and ":" not in path[2]))
