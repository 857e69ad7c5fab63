"""Which models there are, and whether one is ready: what clients of KServe v1 and of OpenAI's interface ask.

    GET /                    KServe v1: the server is alive
    GET /v1/models           both: the models
    GET /v1/models/{model}   KServe v1: whether it is ready; OpenAI: what it is

Both interfaces have the same paths for the last two, so their answers have the members of both. Trusses answer for
themselves, in `doors.truss`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from torchserve_py.doors.open_inference.descriptions import model_ready
from torchserve_py.doors.openapi import JSON, OBJECT, TEXT, Operation
from torchserve_py.doors.responses import Sent
from torchserve_py.doors.routing import READING, DoorContext, PathValues, Route
from torchserve_py.transport.http1.request import Request

_OWNER: Final = "torchserve-py"
_MODEL: Final = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": TEXT, "created": {"type": "integer"}, "ready": {"type": "boolean"}},
}
_ALIVE: Final = Operation("live", "The server is alive")
_LIST: Final = Operation("v1_models", "List the models", (200, 500), gives={JSON: OBJECT})
_SHOW: Final = Operation(
    "v1_model", "Whether a model is ready", (200, 404, 500, 503), gives={JSON: _MODEL}, error=OBJECT
)


class V1ModelsDoor:
    """Lists the default versions of the models, and says whether they are ready."""

    def __init__(self, context: DoorContext) -> None:
        self._serving = context.serving
        self._responses = context.responses
        #: OpenAI's interface has a time for every model: here, of all models, when the server began to serve.
        self._created = int(time.time())

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table."""
        return [
            Route("/", self._alive, READING, token=None, operations=(_ALIVE,)),
            Route("/v1/models", self._list, READING, operations=(_LIST,)),
            Route("/v1/models/{model_name}", self._show, READING, operations=(_SHOW,)),
        ]

    def _alive(self, request: Request, values: PathValues) -> Sent:
        return self._responses.send_json(request, 200, {"status": "alive"})

    def _list(self, request: Request, values: PathValues) -> Sent:
        names = [model.name for model in self._serving.models()]
        listed = {"object": "list", "data": [self._described(name) for name in names], "models": names}
        return self._responses.send_json(request, 200, listed)

    async def _show(self, request: Request, values: PathValues) -> Sent:
        name = values["model_name"]
        ready = await model_ready(self._serving, self._serving.get(name))
        described = {**self._described(name), "name": name, "ready": ready}
        return self._responses.send_json(request, 200 if ready else 503, described)

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": _OWNER}
