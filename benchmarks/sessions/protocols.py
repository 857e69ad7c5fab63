"""How a step reaches a server: each protocol sends one step of one session, and returns the state that comes back."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import grpc
import httpx

from benchmarks.sessions.state import State
from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.client import AsyncClient, RequestFailed, SequenceLost, SessionClosed
from torchserve_py.client.resuming_session import AsyncSession

_BUSY: Final = frozenset({429, 503})
_LOST: Final = frozenset({404, 410})


class Unanswered(Exception):
    """A step has no answer yet, and can be sent again; the message says why."""


class Busy(Unanswered):
    """The server refuses the step for now."""


class SessionLost(Exception):
    """The server has the session's state no more, and says so."""


class SentStep(NamedTuple):
    """A step as a client sends it; a second attempt sends the same."""

    session: str
    index: int
    number: int
    is_last: bool


class Client(Protocol):
    """Sends steps to a server."""

    async def send(self, step: SentStep) -> State:
        """Return the session's state after a step. Raises Unanswered, SessionLost."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class HttpClient:
    """Connections over HTTP/1.1, as many as there are steps in flight."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        limit = aiohttp.ClientTimeout(total=None)
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit, headers=headers)
        self._url = url

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _post(self, body: str | Mapping[str, object], headers: Mapping[str, str]) -> State:
        content = {"data": body} if isinstance(body, str) else {"json": body}
        try:
            async with self._http.post(self._url, headers=headers, **content) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unanswered(f"{type(error).__name__} {error}") from error
        if response.status in _LOST:
            raise SessionLost(text)
        if response.status != 200:
            raise (Busy if response.status in _BUSY else Unanswered)(f"{response.status} {text}")
        return _state(text.strip().strip('"'))


class HeaderClient(HttpClient):
    """TorchServe's way: headers name the sequence."""

    async def send(self, step: SentStep) -> State:
        """Return the session's state after a step. Raises Unanswered, SessionLost."""
        headers = {"Content-Type": "text/plain", "ts_request_sequence_id": step.session}
        if step.index == 0:
            headers["ts_request_sequence_start"] = "true"
        if step.is_last:
            headers["ts_request_sequence_end"] = "true"
        return await self._post(str(step.number), headers | self.further(step))

    def further(self, step: SentStep) -> Mapping[str, str]:
        """Return further headers of a step."""
        return {}


class NumberedClient(HeaderClient):
    """torchserve-py's way: headers also say which step it is, so that a step that is sent again counts once."""

    def further(self, step: SentStep) -> Mapping[str, str]:
        """Return the number of the step, and its id."""
        request_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{step.session} {step.index}")
        return {"ts_request_step": str(step.index + 1), "ts_request_id": str(request_id)}


class JsonClient(HttpClient):
    """An application's own way: a JSON object with ``session``, ``number``, ``start`` and ``end``."""

    async def send(self, step: SentStep) -> State:
        """Return the session's state after a step. Raises Unanswered, SessionLost."""
        is_first = step.index == 0
        body = {"session": step.session, "number": step.number, "start": is_first, "end": step.is_last}
        return await self._post(body, {})


class GrpcClient:
    """TorchServe's gRPC: ``host:port/model`` is the address."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        target, _, self._model = url.removeprefix("grpc://").partition("/")
        self._channel = grpc.aio.insecure_channel(target)
        self._stub = InferenceAPIsServiceStub(self._channel)
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())

    async def send(self, step: SentStep) -> State:
        """Return the session's state after a step. Raises Unanswered, SessionLost."""
        entries = {"body": str(step.number).encode()}
        if step.index == 0:
            entries["ts_request_sequence_start"] = b"true"
        if step.is_last:
            entries["ts_request_sequence_end"] = b"true"
        request = PredictionsRequest(model_name=self._model, sequence_id=step.session, input=entries)
        try:
            response = await self._stub.Predictions(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise SessionLost(error.details()) from error
            kind = Busy if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else Unanswered
            raise kind(f"{error.code()} {error.details()}") from error
        return _state(response.prediction.decode())

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


class LiveClient:
    """torchserve-py's live sessions: a WebSocket for each session, which is resumed if it breaks."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._model = parts.path.rpartition("/")[2]
        key = headers.get("Authorization", "").removeprefix("Bearer ") or None
        self._client = AsyncClient(f"{parts.scheme}://{parts.netloc}", key=key)
        self._sessions: dict[str, AsyncSession] = {}

    async def send(self, step: SentStep) -> State:
        """Return the session's state after a step. Raises Unanswered, SessionLost."""
        session = self._sessions.get(step.session)
        try:
            if session is None:
                session = self._sessions[step.session] = self._client.session(self._model, content_type="text/plain")
                await session.__aenter__()
            answer = await session.step(str(step.number), end=step.is_last)
            if step.is_last:
                await self._sessions.pop(step.session).close()
        except SequenceLost as error:
            raise SessionLost(str(error)) from error
        except (RequestFailed, SessionClosed, httpx.HTTPError) as error:
            raise Unanswered(f"{type(error).__name__} {error}") from error
        return _state(answer.text)

    async def close(self) -> None:
        """Close the connections."""
        for session in self._sessions.values():
            with contextlib.suppress(RequestFailed, SessionClosed):
                await session.close()
        await self._client.close()


def _state(text: str) -> State:
    try:
        return State.of(text)
    except ValueError:
        raise Unanswered(f"not a state: {text[:200]!r}") from None


#: The protocols by name; each makes a client of an address and headers, in a running event loop.
PROTOCOLS: Final[Mapping[str, Callable[[str, Mapping[str, str]], Client]]] = {
    "torchserve": HeaderClient,
    "numbered": NumberedClient,
    "json": JsonClient,
    "grpc": GrpcClient,
    "live": LiveClient,
}
