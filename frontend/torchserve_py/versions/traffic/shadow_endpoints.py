"""The endpoint that says which version runs a model's requests as well, to be compared."""

from collections.abc import Iterator
from typing import Final

from torchserve_py.base.settings.schemas.values import json_object
from torchserve_py.endpoints.failures import bad_request
from torchserve_py.endpoints.openapi import OBJECT, Operation
from torchserve_py.endpoints.requests import read_small_body
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from torchserve_py.versions.traffic.traffic_body import ShadowRules, read_shadow_rules
from torchserve_py.versions.traffic.traffic_care import TrafficCare
from ts.protocol.media_types import JSON

_PATH: Final = "/models/{model_name}/traffic/shadow"
_SHOW: Final = Operation("shadow", "Show how the answers of a model's shadow differ", (200, 404), gives={JSON: OBJECT})
_SET: Final = Operation(
    "setShadow",
    "Let a version run requests that others answer, to compare its answers",
    (200, 400, 404),
    takes={JSON: ShadowRules},
    gives={JSON: OBJECT},
    needs_body=True,
)
_CLEAR: Final = Operation("clearShadow", "End a model's shadow", (200, 404), gives={JSON: OBJECT})
#: Bytes of a body.
_MOST_BYTES: Final = 4096


class ShadowEndpoints(Endpoints):
    """Shows, begins and ends the shadows of models."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._care = context.shared(TrafficCare.of)
        self._shadows = self._care.shadows

    def routes(self) -> Iterator[Route]:
        token = TokenType.management
        yield Route(_PATH, self._show, ("GET",), token, operations=(_SHOW,))
        yield Route(_PATH, self._set, ("PUT",), token, operations=(_SET,))
        yield Route(_PATH, self._clear, ("DELETE",), token, operations=(_CLEAR,))

    def _show(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        self.serving.get(name)
        return json_answer(self._shadows.about(name))

    async def _set(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        self.serving.get(name)
        try:
            rules = read_shadow_rules(json_object(await read_small_body(request, _MOST_BYTES), names_once=True))
        except ValueError as error:
            raise bad_request(f"The body is no shadow of a model: {error}") from None
        self._shadows.begin(name, rules)
        await self._care.save()
        return json_answer(self._shadows.about(name))

    async def _clear(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        self.serving.get(name)
        self._shadows.end(name, "an operator has ended it")
        await self._care.save()
        return json_answer(self._shadows.about(name))
