"""The endpoint for the description of a listener's API: ``OPTIONS /`` and the deprecated ``/api-description``."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from torchserve_py.endpoints.openapi import OBJECT, Operation, described, document
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Route
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import JSON

_SHOW: Final = Operation("apiDescription", "The OpenAPI description of this listener", (200, 500), gives={JSON: OBJECT})


class DescriptionEndpoints(Endpoints):
    """Shows the OpenAPI document of one listener, whose other endpoints have the routes ``others``."""

    def __init__(self, context: EndpointContext, others: Sequence[Route]) -> None:
        super().__init__(context)
        self._others = others

    @cached_property
    def _answer(self) -> Answer:
        return json_answer(document("TorchServe APIs", described([*self.routes(), *self._others])))

    def routes(self) -> Iterator[Route]:
        deprecated = _SHOW._replace(id="api-description", method="GET", deprecated=True)
        yield Route("/", self._show, ("OPTIONS",), token=None, operations=(_SHOW,))
        yield Route("/api-description", self._show, token=None, operations=(deprecated,))

    def _show(self, request: Request, values: PathValues) -> Answer:
        return self._answer
