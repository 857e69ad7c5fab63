"""The server's own path of a model: ``POST /NAME``, for each model with a function or a handler.

It does what ``/predictions/NAME`` does, but for failures: these are problem details. So are refusals of paths that
mean nothing, on a server with a function; a server with TorchServe's handlers only words these as TorchServe does.
"""

from collections.abc import Coroutine, Iterator
from typing import Any

from torchserve_py.contracts.served_functions.problem_dialect import ProblemDialect
from torchserve_py.contracts.served_functions.unknown_paths import about_unknown_path
from torchserve_py.endpoints.failures import Failure, not_found
from torchserve_py.endpoints.model_index import ModelIndex
from torchserve_py.endpoints.predictions import PREDICTING, InferenceEndpoints
from torchserve_py.endpoints.routing import ANY_METHOD, ANY_PATH, EndpointContext, PathValues, Reply, Route
from torchserve_py.net.http1.request import Request


class FunctionsEndpoints(InferenceEndpoints):
    """Runs requests whose path is a model's name."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._dialect = ProblemDialect(context.settings.ts_header_key_sequence_id)
        self._names = ModelIndex(
            self.serving,
            lambda models: frozenset(each.name for each in models if each.contract.handlers and not each.is_function),
        )

    def routes(self) -> Iterator[Route]:
        yield Route("/{model_name}", self._run, ("POST", "OPTIONS"), dialect=self._dialect, applies=self._is_model)
        yield Route(ANY_PATH, _nothing, ANY_METHOD, None, self._dialect, (), self._has_functions, self._refuse)

    def _is_model(self, request: Request, values: PathValues) -> bool:
        return values["model_name"] in self._names.get()

    def _has_functions(self, request: Request, values: PathValues) -> bool:
        return any("function" in self.serving.declared(model) for model in self.serving.models())

    def _refuse(self, request: Request, failure: Failure) -> Coroutine[Any, Any, Reply] | None:
        """Answer a request whose path means nothing; the names of models are told where no key is needed."""
        if failure.type != not_found().failure.type:
            return None
        names = sorted(self._names.get()) if self.context.tokens is None else []
        return self._unknown(about_unknown_path(request.path, names))

    async def _unknown(self, message: str) -> Reply:
        return self._dialect.failure(Failure(404, "", message))

    def _run(self, request: Request, values: PathValues) -> Reply:
        return self.infer(request, values["model_name"], None, PREDICTING)


def _nothing(request: Request, values: PathValues) -> None:
    """Leave a path that means nothing to the refusal, in this endpoint's words."""
