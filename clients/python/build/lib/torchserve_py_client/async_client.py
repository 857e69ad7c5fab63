"""The client for asyncio: requests over HTTP, and live sessions over WebSockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self, TypedDict, Unpack
from urllib.parse import quote, urlencode

import httpx

from .replies import CAUSE, Answer, RequestFailed
from .request_body import NOTHING, body_of
from .resuming_session import AsyncSession
from .stored_sequence import AsyncStoredSequence

#: Seconds for which a session tries to go on, and for a whole request.
PATIENCE: Final = 60.0
#: Refusals that pass: the server has not run the request, and says when to send it again.
_PASSING: Final = frozenset((429, 503))
#: Names of models that stand for other things in paths: these models are at ``/predictions`` only.
_TAKEN: Final = frozenset(("health", "invocations", "live", "models", "ping", "ready", "workflows"))
#: What servers say of a path that means nothing: this one, and TorchServe's.
_NO_PATH: Final = ("Nothing has the path ", "Requested resource is not found")
_SEQUENCE: Final = "ts_request_sequence_id"
BYTES: Final = "application/octet-stream"  # of the steps of a session


class Options(TypedDict, total=False):
    """What a request may say besides its body."""

    version: str | None  # of the model; without it, the default one answers
    json: Any  # a value to send as JSON in place of a body
    content_type: str | None  # of the body; without it, what the value says: bytes, a text or JSON
    headers: Mapping[str, str] | None  # further ones
    sequence: str | None  # the id of the sequence that the request belongs to, for a model with a memory


class AsyncClient:
    """A client of the server whose inference API is at ``url``, such as ``http://localhost:8080``.

    Args:
        url: Where the server is. `stored_sequence` needs the management API.
        key: The key of the API, unless token authorization is off.
        patience: Seconds that `predict` may take until the whole answer is there, with all attempts; that `stream`
            waits for the next part; and for which a session tries to go on after its connection was lost.
    """

    def __init__(self, url: str, *, key: str | None = None, patience: float = PATIENCE) -> None:
        self._url = url.rstrip("/")
        self._patience = patience
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        #: Models without a path of their own.
        self._elsewhere: set[str] = set()
        self._http = httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def predict(self, model: str, body: Any = None, **options: Unpack[Options]) -> Answer:
        """Return a model's answer.

        A request that the server refuses for the moment (429, 503 with ``Retry-After``) is sent again when the server
        says, as long as ``patience`` lasts.

        Args:
            model: The name of the model.
            body: Bytes or a text, or else a value that is sent as JSON: numbers, lists, dicts, arrays of numpy,
                tensors, dataclasses, models of pydantic.
            options: ``sequence``: the id of the sequence that the request belongs to, for a model with a memory;
                ``version`` of the model; ``json``, ``content_type``, ``headers``: see `Options`.

        Raises RequestFailed: there is no answer; httpx.HTTPError: the server cannot be reached, or has not answered
        within ``patience``; TypeError: JSON cannot represent the value.
        """
        try:
            async with asyncio.timeout(self._patience), self._ask(model, body, **options) as response:
                return Answer(response.status_code, response.headers, await response.aread())
        except TimeoutError:
            raise httpx.ReadTimeout(f"no answer within {self._patience:g} seconds") from None

    async def stream(self, model: str, body: Any = None, **options: Unpack[Options]) -> AsyncIterator[bytes]:
        """Yield a model's answer as it comes, in parts.

        Takes what `predict` takes. ``patience`` is the most seconds until the next part. Raises what `predict` raises.
        """
        async with self._ask(model, body, **options) as response:
            async for piece in response.aiter_bytes():
                yield piece

    def session(
        self,
        model: str,
        *,
        version: str | None = None,
        content_type: str = BYTES,
        resume: str | None = None,
        sequence: str | None = None,
    ) -> AsyncSession:
        """Return a live session, to be used with ``async with``: its steps share one state, in order.

        Args:
            model: The name of a model with a memory.
            version: The version of the model; without it the default one.
            content_type: That of all steps.
            resume: The ``resume_token`` of an earlier session, which goes on: also of another program, after a restart.
            sequence: The id of a sequence, which others may use as well: the session and requests over HTTP with this
                id share its state. Without it the session has a sequence of its own.

        Raises ValueError: both ``resume`` and ``sequence`` are given: a named sequence goes on by its name.
        """
        if resume is not None and sequence is not None:
            raise ValueError("give resume or sequence, not both: a named sequence goes on by its name")
        path = _path("sequences", model, version)
        query = {"content_type": content_type} | ({} if sequence is None else {"sequence": sequence})
        url = f"{self._url.replace('http', 'ws', 1)}{path}?{urlencode(query)}"
        return AsyncSession(url, self._headers, self._patience, resume)

    def stored_sequence(self, model: str, sequence_id: str) -> AsyncStoredSequence:
        """Return what a client of the management API can do with a stored sequence."""
        return AsyncStoredSequence(self._http, _path("sequences", model, sequence_id))

    @contextlib.asynccontextmanager
    async def _ask(
        self,
        model: str,
        body: Any,
        *,
        version: str | None = None,
        json: Any = NOTHING,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        sequence: str | None = None,
    ) -> AsyncIterator[httpx.Response]:
        content, told = body_of(body, json)
        sent = {**(headers or {}), "Content-Type": content_type or told}
        if sequence is not None:
            sent[_SEQUENCE] = sequence
        end = asyncio.get_running_loop().time() + self._patience
        while True:
            path = self._path_of(model, version)
            async with self._http.stream("POST", path, content=content, headers=sent) as response:
                if response.status_code < 400:
                    yield response
                    return
                failed = RequestFailed.of(response.status_code, response.headers.get(CAUSE, ""), await response.aread())
                delay = _pause(response)
            if _is_no_path(response, failed) and path == f"/{quote(model, safe='')}":
                self._elsewhere.add(model)
            elif delay is None or asyncio.get_running_loop().time() + delay > end:
                raise failed
            else:
                await asyncio.sleep(delay)

    def _path_of(self, model: str, version: str | None) -> str:
        """Return the model's own path, whose failures say most; TorchServe's where the model has none."""
        if version is not None or model in _TAKEN or model in self._elsewhere:
            return _path("predictions", model, version)
        return f"/{quote(model, safe='')}"


def _pause(response: httpx.Response) -> float | None:
    """Return after how many seconds a refused request may be sent again; None: the server does not say."""
    after = response.headers.get("Retry-After", "")
    return float(after) if response.status_code in _PASSING and after.isdecimal() else None


def _is_no_path(response: httpx.Response, failed: RequestFailed) -> bool:
    """Whether the server knows no such path: the model has none of its own, or its code would have answered."""
    return response.status_code == 404 and not failed.cause and failed.message.startswith(_NO_PATH)


def _path(api: str, model: str, further: str | None) -> str:
    return "/".join(("", api, *(quote(name, safe="") for name in (model, further) if name is not None)))
