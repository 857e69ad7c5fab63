"""The server's own answers in the shape of the Open Inference Protocol: compact JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torchserve_py.doors.errors import UNAVAILABLE, DoorError, Failure
from torchserve_py.doors.open_inference.compression import compressed_for
from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving


class Answers:
    """Writes them.

    Args:
        responses: Writes all.
        compress_from: From so many bytes on JSON is compressed for clients that accept that.
    """

    def __init__(self, responses: Responses, compress_from: int) -> None:
        self._responses = responses
        self._compress_from = compress_from

    async def json(self, request: Request, value: Any, status: int = 200) -> Sent:
        """Answer with JSON of the server's own."""
        body, added = await compressed_for(request, to_json(value), self._compress_from)
        return self._responses.send(request, status, body, (JSON_TYPE, *added))


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def error_body(message: str, status: int) -> bytes:
    """The body of an error; one of a request that is not shaped as it should has MLServer's list, too."""
    members: dict[str, Any] = {"error": message}
    if status == 422:
        members["detail"] = [{"type": "value_error", "loc": ["body"], "msg": message}]
    return to_json(members)


def refuse_if_failing(serving: Serving, model: ServedModel) -> None:
    """Refuse a request that would wait for a model which none of its workers could load when it tried last.

    Raises:
        DoorError: Its workers fail to start.
    """
    if serving.fails_to_load(model):
        message = f"Model {model.name} is not ready: its workers fail to start."
        raise DoorError(Failure(503, UNAVAILABLE, message, Cause.no_worker.value))
