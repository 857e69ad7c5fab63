"""Requests of the client: which path they take, when they are sent again, and for how long."""

import asyncio
from collections.abc import Callable
from functools import partial

import httpx
import pytest

from torchserve_py.client import AsyncClient, Client, RequestFailed

NO_PATH = b'{"type": "about:blank", "status": 404, "detail": "Nothing has the path \'/m\'. See /docs."}'
REFUSED = (503, {"Retry-After": "0", "ts-error-cause": "queue_full"}, b"full")
Reply = tuple[int, dict[str, str], bytes]


class Server:
    """Gives these answers, the last one again and again, and notes what it is asked."""

    def __init__(self, *replies: Reply) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self._replies = list(replies)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.url.raw_path.decode(), request.headers.get("ts_request_sequence_id")))
        status, headers, body = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return httpx.Response(status, headers=headers, content=body)


@pytest.fixture
def client_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AsyncClient]:
    def make(server: Server, patience: float = 60) -> AsyncClient:
        transport = httpx.MockTransport(server)
        monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=transport))
        return AsyncClient("http://server", patience=patience)

    return make


async def test_a_request_takes_the_models_own_path_and_names_its_sequence(
    client_of: Callable[..., AsyncClient],
) -> None:
    server = Server((200, {}, b"A"))
    client = client_of(server)
    assert (await client.predict("my model", 1, sequence="ada")).text == "A"
    await client.predict("m", 1, version="2.0")
    await client.predict("ping", 1)
    assert server.asked == [("/my%20model", "ada"), ("/predictions/m/2.0", None), ("/predictions/ping", None)]


async def test_a_model_without_a_path_of_its_own_is_found_at_torchserves(client_of: Callable[..., AsyncClient]) -> None:
    server = Server((404, {}, NO_PATH), (200, {}, b"A"))
    client = client_of(server)
    assert [(await client.predict("m", 1)).text for _ in range(2)] == ["A", "A"]
    assert [path for path, _ in server.asked] == ["/m", "/predictions/m", "/predictions/m"]


async def test_what_a_model_answers_with_404_is_not_asked_for_again(client_of: Callable[..., AsyncClient]) -> None:
    server = Server((404, {}, b"no such user"))
    with pytest.raises(RequestFailed, match="no such user"):
        await client_of(server).predict("m", 1)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_that_passes_is_waited_for(status: int, client_of: Callable[..., AsyncClient]) -> None:
    server = Server((status, *REFUSED[1:]), (status, *REFUSED[1:]), (200, {}, b"A"))
    assert (await client_of(server).predict("m", 1)).text == "A"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "reply", [(503, {}, b"failed"), (503, {"Retry-After": "90"}, b"full"), (500, {"Retry-After": "0"}, b"failed")]
)
async def test_other_failures_are_told(reply: Reply, client_of: Callable[..., AsyncClient]) -> None:
    server = Server(reply)
    with pytest.raises(RequestFailed) as failed:
        await client_of(server).predict("m", 1)
    assert (failed.value.status, len(server.asked)) == (reply[0], 1)


async def test_patience_is_the_limit_of_all_attempts_together(client_of: Callable[..., AsyncClient]) -> None:
    async def slow(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(httpx.ReadTimeout, match=r"no answer within 0\.05 seconds"):
        await client_of(slow, patience=0.05).predict("m", 1)


def test_what_editors_show_of_the_client_is_said_in_full() -> None:
    for method in (Client, Client.predict, Client.stream, Client.session, AsyncClient.session):
        text = method.__doc__ or ""
        assert len(text) > 60
        assert "see `Async" not in text
