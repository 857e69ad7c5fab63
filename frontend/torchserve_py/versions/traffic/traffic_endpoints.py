"""The endpoint that says which versions of a model get the requests that name none."""

from collections.abc import Iterator
from typing import Any, Final

from torchserve_py.base.settings.schemas.values import json_object
from torchserve_py.core.serving.weights import shared_out
from torchserve_py.endpoints.failures import bad_request
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.management.management_endpoints import FORCE
from torchserve_py.endpoints.management.parameters import of_query
from torchserve_py.endpoints.openapi import OBJECT, Operation
from torchserve_py.endpoints.requests import read_small_body
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from torchserve_py.versions.traffic.traffic_body import TrafficBody, read_body
from torchserve_py.versions.traffic.traffic_care import TrafficCare
from ts.protocol.media_types import JSON

_PATH: Final = "/models/{model_name}/traffic"
_SHOW: Final = Operation(
    "traffic", "Show which versions of a model get the requests that name none", (200, 404), gives={JSON: OBJECT}
)
_SET: Final = Operation(
    "setTraffic",
    "Let versions share the requests that name none: by weights, or by the rules of a canary",
    (200, 400, 404, 409),
    (FORCE,),
    takes={JSON: TrafficBody},
    gives={JSON: OBJECT},
    needs_body=True,
)
_CLEAR: Final = Operation(
    "clearTraffic",
    "Let the default version get all requests that name none",
    (200, 400, 404, 409),
    (FORCE,),
    gives={JSON: OBJECT},
)
#: Bytes of a body.
_MOST_BYTES: Final = 65_536


class TrafficEndpoints(Endpoints):
    """Shows and changes the traffic of models."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._calls = context.shared(ManagementCalls.of)
        self._care = context.shared(TrafficCare.of)
        self._canaries = self._care.canaries

    def routes(self) -> Iterator[Route]:
        token = TokenType.management
        yield Route(_PATH, self._show, ("GET",), token, operations=(_SHOW,))
        yield Route(_PATH, self._set, ("PUT",), token, operations=(_SET,))
        yield Route(_PATH, self._clear, ("DELETE",), token, operations=(_CLEAR,))

    def _show(self, request: Request, values: PathValues) -> Answer:
        return json_answer(self._about(values["model_name"]))

    async def _set(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        self.serving.get(name)
        try:
            wanted = read_body(json_object(await read_small_body(request, _MOST_BYTES), names_once=True))
        except ValueError as error:
            raise bad_request(f"The body is no traffic of a model: {error}") from None
        if wanted.canary is not None:
            await self._canaries.begin(name, wanted.canary)
        else:
            assert wanted.weights is not None
            weights = {version: share for version, share in wanted.weights.items() if share}
            await self._calls.set_weights(name, weights, force=of_query(request, _SET).get("force", False))
            self._canaries.forget(name)
        await self._care.save()
        return json_answer(self._about(name))

    async def _clear(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        await self._calls.set_weights(name, {}, force=of_query(request, _CLEAR).get("force", False))
        self._canaries.forget(name)
        await self._care.save()
        return json_answer(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        default = self.serving.get(name).version
        weights = shared_out(self.serving.weights(name))  # a version alone may have kept less than 100 of the settings
        return {"default": default, "weights": weights, **self._canaries.about(name)}
