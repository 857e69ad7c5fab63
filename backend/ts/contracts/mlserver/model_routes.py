"""REST paths of a model's own (``@custom_handler``), run by FastAPI in the worker.

FastAPI decides, as in MLServer, what a method's parameters mean: bodies, path and query parameters, requests.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from mlserver import MLModel
from mlserver.handlers import get_custom_handlers

from ts.contracts.mlserver.conversion import failure_of
from ts.handler_utils.asgi_scope import receive_once, response_sender, scope_of
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow, ResultRow


class CustomRoutes:
    """An application of FastAPI with a model's custom handlers.

    Attributes:
        declared: Path, HTTP methods and the name of the method, for each of them.
    """

    def __init__(self, model: MLModel) -> None:
        self._app = FastAPI(openapi_url=None)
        self._app.add_exception_handler(Exception, _answer_error)
        self.declared: list[list[Any]] = []
        for handler, method in get_custom_handlers(model):
            self._app.add_api_route(handler.rest_path, method, methods=[handler.rest_method])
            self.declared.append([handler.rest_path, [handler.rest_method.upper()], method.__name__])

    async def answer(self, row: InferRow, put: Callable[[ResultRow], None]) -> None:
        """Run a row's handler; ``put`` takes the response in parts. Raises Failure: it failed before the last one."""
        body = b"" if isinstance(row.body, list) else bytes(row.body)
        is_answered = False

        def take(more: bool, status: int, headers: list[tuple[str, str]], part: Buffer) -> None:
            nonlocal is_answered
            put(ResultRow(row.job_id, more, status, "", headers, part))
            is_answered = not more

        try:
            await self._app(scope_of("http", row.headers), receive_once(body), response_sender(take))
        except Exception as error:  # the application raises what it has answered once more, for the server's log
            failure = failure_of(error)
            if not is_answered:
                raise failure from None


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    failure = failure_of(error)
    return JSONResponse({"error": failure.message}, failure.status)
