"""The paths under ``/v2/systemsharedmemory``: clients register, list and unregister regions of shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.open_inference.answers import Answers
from torchserve_py.doors.parameters import read_object
from torchserve_py.doors.requests import read_small_body
from torchserve_py.doors.routing import READING, DoorContext, PathValues, Route

if TYPE_CHECKING:
    from torchserve_py.doors.responses import Sent
    from torchserve_py.transport.http1.request import Request

_BASE: Final = "/v2/systemsharedmemory"
_REGION: Final = f"{_BASE}/region/{{region}}"


class SharedMemoryRoutes:
    """Answers requests about regions."""

    def __init__(self, context: DoorContext, answers: Answers) -> None:
        self._memory = context.shared_memory
        self._responses = context.responses
        self._answers = answers
        self._max_size = context.settings.max_request_size

    def rows(self) -> Iterator[Route]:
        """Return the table."""
        for base in (_BASE, _REGION):
            yield Route(f"{base}/status", self._status, READING)
            yield Route(f"{base}/unregister", self._unregister, ("POST",))
        yield Route(f"{_REGION}/register", self._register, ("POST",))

    async def _status(self, request: Request, values: PathValues) -> Sent:
        return await self._answers.json(request, self._memory.status(values.get("region", "")))

    async def _register(self, request: Request, values: PathValues) -> Sent:
        self._memory.check_enabled()
        given = read_object(await read_small_body(request, self._max_size))
        self._memory.register(values["region"], given.get("key"), given.get("offset", 0), given.get("byte_size"))
        return self._responses.send(request, 200, b"")

    async def _unregister(self, request: Request, values: PathValues) -> Sent:
        self._memory.check_enabled()
        await read_small_body(request, self._max_size)
        self._memory.unregister(values.get("region", ""))
        return self._responses.send(request, 200, b"")
