"""Probes of Trusses: alive, loaded, ready, metrics. None of them waits for requests that a model is working on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent
from torchserve_py.doors.truss.answers import MODEL_FAILED, Answers, quietly
from torchserve_py.doors.truss.dialect import ErrorCode
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving

#: How long a model may take to say whether it is healthy (seconds); Truss waits for ever, and a prober gives up.
_HEALTH_LIMIT: Final = 30.0
#: How long its metrics may take to be collected; Prometheus waits for 10 seconds.
_METRICS_LIMIT: Final = 10.0
_TEXT_FORMAT: Final = ("content-type", "text/plain; version=0.0.4; charset=utf-8")


class Probes:
    """Answers them."""

    def __init__(self, serving: Serving, responses: Responses, answers: Answers) -> None:
        self._serving = serving
        self._responses = responses
        self._answers = answers

    def live(self, request: Request) -> Sent:
        """``GET /``: the server answers."""
        return quietly(self._responses.send(request, 200, b"true", (JSON_TYPE,)))

    def loaded(self, request: Request, model: ServedModel, name: str) -> Sent:
        """Whether a worker has loaded the model, well or not."""
        if not self._serving.is_loaded(model):
            return quietly(self._answers.not_ready(request, name))
        return quietly(self._answers.json(request, {}))

    async def ready(self, request: Request, model: ServedModel, name: str) -> Sent:
        """Whether the model has been loaded and says that it is well."""
        if self._serving.is_loaded(model) and await self._serving.check_health(model, _HEALTH_LIMIT):
            return quietly(self._answers.json(request, {}))
        return quietly(self._answers.not_ready(request, name))

    async def metrics(self, request: Request, model: ServedModel) -> Sent:
        """What the model's code counts itself, in all workers."""
        text = await self._serving.expose_metrics(model, _METRICS_LIMIT)
        if text is None:
            return quietly(self._answers.error(request, 500, MODEL_FAILED, ErrorCode.model))
        return quietly(self._responses.send(request, 200, text.encode(), (_TEXT_FORMAT,)))

    def schema(self, request: Request, model: ServedModel, name: str) -> Sent:
        """What the model takes and gives, as far as its annotations say."""
        if not self._serving.is_loaded(model):
            return self._answers.not_ready(request, name)
        schema = self._serving.declared(model).get("schema")
        if schema is None:
            return self._answers.error(request, 404, "No schema found", ErrorCode.model)
        return self._answers.json(request, schema)
