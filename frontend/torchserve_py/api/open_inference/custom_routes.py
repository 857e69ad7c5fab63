"""Routes of a model's own: an MLServer model's custom handlers, on whatever paths it has declared for them.

They exist as long as the model is loaded. The worker gets the request as it came and answers what it likes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import hdrs, web

from torchserve_py.api import priorities
from torchserve_py.api.errors import handler_failure
from torchserve_py.api.open_inference.answers import Answers, failure_of_parts
from torchserve_py.api.request_line import request_line
from torchserve_py.api.requests import read_body
from torchserve_py.api.responses import Responses
from torchserve_py.api.streaming import send_stream
from torchserve_py.archive.contract import MLSERVER
from torchserve_py.workers.parts import JobFailed
from ts.protocol.messages import CUSTOM

if TYPE_CHECKING:
    from torchserve_py.models.model import Model
    from torchserve_py.models.registry import ModelRegistry
    from torchserve_py.settings import Settings


class CustomRoute(NamedTuple):
    """What a request's path leads to; ``endpoint`` is None where the path is for other methods (``allowed``)."""

    model: Model
    endpoint: str | None
    allowed: str


class CustomRoutes:
    """Finds the models' own routes and runs requests on them."""

    def __init__(self, settings: Settings, registry: ModelRegistry, responses: Responses, answers: Answers) -> None:
        self._registry = registry
        self._responses = responses
        self._answers = answers
        self._max_body = settings.max_request_size
        self._stall_limit = float(settings.default_response_timeout)

    def find(self, request: web.BaseRequest) -> CustomRoute | None:
        """The route that a request is for, None if no model has one of that path."""
        path, found = request.raw_path.partition("?")[0], None
        for _, model in self._registry.models():
            if model.contract != MLSERVER:
                continue
            for template, methods, endpoint in model.declared.get("routes") or ():
                if not _pattern(template).fullmatch(path):
                    continue
                if request.method in methods:
                    return CustomRoute(model, endpoint, "")
                found = found or CustomRoute(model, None, ", ".join(methods))
        return found

    async def run(self, request: web.BaseRequest, route: CustomRoute) -> web.StreamResponse:
        """Run a request on a route.

        Raises:
            DoorError: It is refused, or the model answered what HTTP does not allow.
        """
        if route.endpoint is None:
            return await self._answers.method_not_allowed(request, route.allowed)
        body = await read_body(request, self._max_body, self._stall_limit)
        parts = route.model.submit(
            request.raw_headers + request_line(request, route.endpoint),
            body,
            content_type=request.headers.get(hdrs.CONTENT_TYPE),
            by_default=True,
            alone=route.model.is_stateful,
            protocol=CUSTOM,
            priority=priorities.of_request(request),
        )
        try:
            part = await parts.next()
            if part.error is not None:
                failure = handler_failure(part.status, part.error)
                return await self._answers.failure(request, failure, parts.job.id)
            if part.more:
                return await send_stream(self._responses, request, parts, part, part.headers, announced=False)
            return await self._responses.send(
                request, part.status, part.body, part.headers, reason=part.reason, request_id=parts.job.id
            )
        except JobFailed as failed:
            failure = failure_of_parts(failed.cause, parts, route.model.name, None, is_text=False)
            return await self._answers.failure(request, failure, parts.job.id)
        finally:
            parts.cancel()  # does nothing to a job that has ended; the client of any other is gone


@lru_cache(maxsize=1024)
def _pattern(template: str) -> re.Pattern[str]:
    """What matches the paths of a template as FastAPI has them: ``/items/{id}``, ``/files/{name:path}``."""
    pieces = re.split(r"\{\w+(:path)?\}", template)
    fixed, kinds = pieces[::2], pieces[1::2]
    pattern = re.escape(fixed[0])
    for kind, rest in zip(kinds, fixed[1:], strict=True):
        pattern += (".+" if kind else "[^/]+") + re.escape(rest)
    return re.compile(pattern)
