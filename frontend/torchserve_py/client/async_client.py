"""The client for asyncio."""

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
_BYTES: Final = "application/octet-stream"  # of the steps of a session


class Options(TypedDict, total=False):
    """What a request may say besides its body."""

    version: str | None  # of the model; without it, the default one answers
    json: Any  # a value to send as JSON in place of a body
    content_type: str | None  # of the body; without it, what the value says: bytes, a text or JSON
    headers: Mapping[str, str] | None  # further ones


class AsyncClient:
    """A client of the server whose inference API is at ``url``, such as ``http://localhost:8080``.

    ``stored_sequence`` needs a client of the management API. ``key`` is that of the API, unless token authorization is
    off. ``patience`` is how long to wait for an answer, and
    how long a session tries to go on (seconds).
    """

    def __init__(self, url: str, *, key: str | None = None, patience: float = PATIENCE) -> None:
        self._url = url.rstrip("/")
        self._patience = patience
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
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

        The body is bytes or a text, or else a value that is sent as JSON: numbers, lists, dicts, arrays of numpy,
        tensors, dataclasses, models of pydantic. Raises RequestFailed: there is no answer; httpx.HTTPError: the server
        cannot be reached, or has not answered in time; TypeError: JSON cannot represent the value.
        """
        async with self._ask(model, body, **options) as response:
            return Answer(response.status_code, response.headers, await response.aread())

    async def stream(self, model: str, body: Any = None, **options: Unpack[Options]) -> AsyncIterator[bytes]:
        """Yield a model's answer as it comes; raises what `predict` raises."""
        async with self._ask(model, body, **options) as response:
            async for piece in response.aiter_bytes():
                yield piece

    def session(self, model: str, *, version: str | None = None, content_type: str = _BYTES) -> AsyncSession:
        """Return a live session, to be used with ``async with``; ``content_type`` is that of its steps."""
        path = _path("sequences", model, version)
        url = f"{self._url.replace('http', 'ws', 1)}{path}?{urlencode({'content_type': content_type})}"
        return AsyncSession(url, self._headers, self._patience)

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
    ) -> AsyncIterator[httpx.Response]:
        content, told = body_of(body, json)
        path, sent = _path("predictions", model, version), {**(headers or {}), "Content-Type": content_type or told}
        async with self._http.stream("POST", path, content=content, headers=sent) as response:
            if response.status_code >= 400:
                cause = response.headers.get(CAUSE, "")
                raise RequestFailed.of(response.status_code, cause, await response.aread())
            yield response


def _path(api: str, model: str, further: str | None) -> str:
    return "/".join(("", api, *(quote(name, safe="") for name in (model, further) if name is not None)))
