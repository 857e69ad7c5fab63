"""An endpoint whose answers are in upper case."""

from functools import partial

from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.client_call import HttpCall, HttpDialect
from torchserve_py.endpoints.failures import Failure
from torchserve_py.endpoints.openapi import BINARY, Operation
from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import AfterBody, Endpoints, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.plugin_api import EndpointsOffer, Plugin

SHOUT = Operation("shout", "Run a model, and answer in upper case", (200, "default"), takes=BINARY, gives=BINARY)


class ShoutingDialect(HttpDialect):
    """How this API answers; streams and the wording of failures are as everywhere."""

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        return Answer(failure.status, f"{failure.message}!".encode(), (("Content-Type", "text/plain"),))

    def answer(self, call: HttpCall, part: Part) -> Answer:
        return Answer(part.status, part.body.upper(), part.headers, part.reason)


DIALECT = ShoutingDialect()


class ShoutingEndpoints(Endpoints):
    """Runs a request on the model that its path names."""

    def routes(self) -> list[Route]:
        return [Route("/shout/{model_name}", self._run, ("POST",), dialect=DIALECT, operations=(SHOUT,))]

    def _run(self, request: Request, values: PathValues) -> AfterBody:
        call = self.context.call_of(request, DIALECT, self.serving.get(values["model_name"]))
        return partial(self.context.submit, call)


PLUGIN = Plugin(name="shouting", endpoints=lambda: [EndpointsOffer("inference_address", ShoutingEndpoints)])
