"""REST paths of a model's own (``@custom_handler``), run by FastAPI in the worker.

FastAPI decides, as in MLServer, what a method's parameters mean: bodies, path and query parameters, requests.
"""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from ts.protocol.messages import InferRow
from ts.runtimes.asgi_scope import scope_of
from ts.runtimes.mlserver.api import MLModel, get_custom_handlers
from ts.runtimes.mlserver.conversion import failure_of

#: Whether another part follows, status, headers and body.
Part = tuple[bool, int, list[tuple[str, str]], bytes]


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

    async def answer(self, row: InferRow) -> AsyncIterator[Part]:
        """Run the handler that a row is for; yield its response in as many parts as it gives."""
        parts: asyncio.Queue[Part | None] = asyncio.Queue(maxsize=1)
        call = asyncio.create_task(self._run(row, parts))
        try:
            while (part := await parts.get()) is not None:
                yield part
        finally:
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call

    async def _run(self, row: InferRow, parts: asyncio.Queue[Part | None]) -> None:
        body = b"" if isinstance(row[3], list) else bytes(row[3])
        received = False
        head: tuple[int, list[tuple[str, str]]] = (500, [])

        async def receive() -> MutableMapping[str, Any]:
            nonlocal received
            if received:  # code that waits for the client to leave is cancelled when it does
                await asyncio.get_running_loop().create_future()
            received = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message["status"], _texts(message.get("headers", ()))
            elif message["type"] == "http.response.body":
                more = bool(message.get("more_body"))
                await parts.put((more, *head, bytes(message.get("body", b""))))

        try:
            await self._app(scope_of("http", row[1]), receive, send)
        except Exception as error:
            # It is answered already: the application raises it once more for the server's log.
            failure_of(error)
        await parts.put(None)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    failure = failure_of(error)
    return JSONResponse({"error": failure.message}, failure.status)


def _texts(headers: Any) -> list[tuple[str, str]]:
    """Return the headers of a response; its length is the door's business."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return [(name, value) for name, value in pairs if name.lower() != "content-length"]
