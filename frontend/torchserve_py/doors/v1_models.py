"""The door for KServe v1's and OpenAI's lists of models and descriptions of one model.

    GET /                    KServe v1: the server is alive
    GET /v1/models           both: the models
    GET /v1/models/{model}   KServe v1: whether the model is ready; OpenAI: its description

Both interfaces share the last two paths, so these answers have the members of both. `doors.truss` answers for Trusses.
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
        #: The ``created`` time that OpenAI's interface demands: here the start of the server, for all models.
        self._created = int(time.time())

    @property
    def routes(self) -> Sequence[Route]:
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
