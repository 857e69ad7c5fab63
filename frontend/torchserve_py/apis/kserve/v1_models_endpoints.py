"""``/v1/models``, as clients of KServe V1 and of OpenAI read it: the answers have the members of both.

`contracts.truss` answers for Trusses.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

from torchserve_py.apis.kserve.kserve_dialect import KSERVE_DIALECT
from torchserve_py.apis.open_inference.descriptions import model_ready
from torchserve_py.apis.openai.openai_keys import ANY_NAME, names_of
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.openapi import OBJECT, TEXT, Operation
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import READING, EndpointContext, Endpoints, PathValues, Route
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import JSON

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


class V1ModelsDoor(Endpoints):
    """Lists the default versions of the models, and says whether they are ready."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        #: The ``created`` time that OpenAI's interface demands: here the start of the server, for all models.
        self._created = int(time.time())

    def routes(self) -> Iterator[Route]:
        yield Route("/", self._alive, READING, token=None, operations=(_ALIVE,), is_probe=True)
        yield Route("/v1/models", self._list, READING, operations=(_LIST,))
        yield Route("/v1/models/{model_name}", self._show, READING, dialect=KSERVE_DIALECT, operations=(_SHOW,))

    def _alive(self, request: Request, values: PathValues) -> Answer:
        return json_answer({"status": "alive"})

    def _list(self, request: Request, values: PathValues) -> Answer:
        """List, for OpenAI's clients, the names of models that answer them, and for KServe's all models."""
        models = self.serving.models()
        data = dict.fromkeys(name for model in models for name in _for_openai(model) if name != ANY_NAME)
        names = [model.name for model in models]
        return json_answer({"object": "list", "data": [self._described(name) for name in data], "models": names})

    async def _show(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        ready = await model_ready(self.serving, self._named(name))
        return json_answer({**self._described(name), "name": name, "ready": ready}, 200 if ready else 503)

    def _named(self, name: str) -> ServedModel:
        """Return the model with a name, or the one that has it among its names for OpenAI clients."""
        models = self.serving.models()
        has_own = any(model.name == name for model in models)
        others = [] if has_own or name == ANY_NAME else [model for model in models if name in names_of(model)]
        return others[0] if others else self.serving.get(name)

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": _OWNER}


def _for_openai(model: ServedModel) -> list[str]:
    """Return the names by which OpenAI's clients may ask for a model. A Truss may have methods for them."""
    return [model.name] if model.contract.truss_api else names_of(model)
