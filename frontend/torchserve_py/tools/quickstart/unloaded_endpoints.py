"""The endpoint for requests that come while a served file does not load: its model may be the one that they mean."""

import os
from collections.abc import Coroutine, Iterator
from typing import Any, Final, Self

from torchserve_py.contracts.served_functions.problem_dialect import ProblemDialect
from torchserve_py.endpoints.failures import UNAVAILABLE, Failure, not_found
from torchserve_py.endpoints.routing import ANY_METHOD, ANY_PATH, EndpointContext, Endpoints, PathValues, Reply, Route
from torchserve_py.net.http1.request import Request
from ts.serve_decorator import DEVELOPMENT_VARIABLE

#: The cause of an answer while the model of a file does not load.
MODEL_NOT_LOADED: Final = "model_not_loaded"


class UnloadedFiles:
    """The files whose models do not load, by location, each with the words about it."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return those of a server."""
        return cls()

    def __init__(self) -> None:
        self.why: dict[str, str] = {}


class UnloadedEndpoints(Endpoints):
    """Answers 503 at paths that mean nothing as long as a file does not load."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._dialect = ProblemDialect(context.settings.ts_header_key_sequence_id)
        self._unloaded = context.shared(UnloadedFiles.of)

    def routes(self) -> Iterator[Route]:
        yield Route(ANY_PATH, _nothing, ANY_METHOD, None, self._dialect, (), self._applies, self._refuse)

    def _applies(self, request: Request, values: PathValues) -> bool:
        return bool(self._unloaded.why)

    def _refuse(self, request: Request, failure: Failure) -> Coroutine[Any, Any, Reply] | None:
        if failure.type != not_found().failure.type:
            return None
        development = DEVELOPMENT_VARIABLE in os.environ
        told = " ".join(self._unloaded.why.values()) if development else "A model does not load; the log says why."
        return self._tell(f"Nothing has the path {request.target.partition('?')[0][:80]!r}. {told}")

    async def _tell(self, message: str) -> Reply:
        failure = Failure(503, UNAVAILABLE, message, MODEL_NOT_LOADED)
        answer = self._dialect.failure(failure)
        return answer._replace(headers=(*answer.headers, *failure.headers))


def _nothing(request: Request, values: PathValues) -> None:
    """Leave the request to the refusal."""
