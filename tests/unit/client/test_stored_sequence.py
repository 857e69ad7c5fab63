"""What the client asks of the management API for a stored sequence, and how it reads the answers."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import pytest

from torchserve_py.client import AsyncClient, AsyncStoredSequence, Bookmark, RequestFailed, SequenceDescription

CHANGED = {"modelName": "m", "sequenceId": "s", "modelVersion": "1.0", "lastStep": 2, "token": "t"}
RUNS = [{"from": 1, "to": 2}, {"from": 4, "to": 4}]
SHOWN = {**CHANGED, "state": "open", "stepsWithState": RUNS, "heldBy": "this server", "logBytes": 9}


class Server:
    """Answers the same each time, and notes what it is asked."""

    def __init__(self, answer: Mapping[str, Any] | bytes, status: int = 200, **headers: str) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._answer = status, headers, body

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.raw_path.decode(), request.content))
        status, headers, body = self._answer
        return httpx.Response(status, headers=headers, content=body)

    def sequence(self, sequence_id: str = "s") -> AsyncStoredSequence:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=httpx.MockTransport(self)))
            return AsyncClient("http://server").stored_sequence("m", sequence_id)


async def test_what_is_asked() -> None:
    server = Server(CHANGED)
    sequence = server.sequence("a/b ä")
    assert await sequence.rewind(step=2) == Bookmark("s", "1.0", 2, "t")
    assert await sequence.fork() == Bookmark("s", "1.0", 2, "t")
    await sequence.fork(as_id="x&y", step=1)
    await sequence.import_(b"file", replace=True)
    await sequence.import_(b"file")
    path = "/sequences/m/a%2Fb%20%C3%A4"
    assert server.asked == [
        ("POST", f"{path}/rewind?step=2", b""),
        ("POST", f"{path}/fork", b""),
        ("POST", f"{path}/fork?as=x%26y&step=1", b""),
        ("PUT", f"{path}/import?replace=true", b"file"),
        ("PUT", f"{path}/import?replace=false", b"file"),
    ]


async def test_a_description_has_the_steps_that_there_are() -> None:
    server = Server(SHOWN)
    description = await server.sequence().describe()
    assert description == SequenceDescription("s", "1.0", 2, "open", [1, 2, 4], "this server", SHOWN)
    assert server.asked == [("GET", "/sequences/m/s", b"")]
    over = Server({**SHOWN, "state": "ended", "stepsWithState": []})
    assert list((await over.sequence().describe()).steps) == []


async def test_an_export_is_bytes() -> None:
    server = Server(b"\x00file")
    assert await server.sequence().export() == b"\x00file"
    assert server.asked == [("GET", "/sequences/m/s/export", b"")]


async def test_a_refusal_is_raised_as_everywhere() -> None:
    refusal = {"code": 503, "type": "ServiceUnavailableException", "message": "The store cannot be used"}
    sequence = Server(refusal, 503, **{"ts-error-cause": "sequence_store"}).sequence()
    for call in (sequence.describe(), sequence.export(), sequence.rewind(step=1), sequence.import_(b"x")):
        with pytest.raises(RequestFailed, match="The store cannot be used") as failed:
            await call
        assert (failed.value.status, failed.value.cause) == (503, "sequence_store")
