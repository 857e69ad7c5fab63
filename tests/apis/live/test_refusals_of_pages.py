"""Pages whose live session is refused: browsers tell them nothing of a refused handshake, so the server does."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

PAGE = "http://app.example"
FORM = "sequences.json.v1"


async def refusal(url: str, *subprotocols: str, origin: str | None = PAGE) -> tuple[dict[str, Any], int, str]:
    """Open a session as a page does; return what it is told, and how the WebSocket is closed."""
    async with connect(url, origin=origin, subprotocols=[FORM, *subprotocols]) as socket:  # type: ignore[arg-type,list-item]
        told = json.loads(await socket.recv())
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        return told["error"], closed.value.rcvd.code, closed.value.rcvd.reason


async def test_a_page_is_told_why_at_once(start: Start) -> None:
    endpoints = await start(FakeServing([FakeModel(stateful=True), FakeModel("plain")]), cors_allowed_origin=PAGE)
    url = str(endpoints.address()).replace("http", "ws")
    error, code, reason = await refusal(f"{url}/sequences/ghost")
    assert (error["status"], code, error["message"]) == (404, 4404, reason)
    error, code, _ = await refusal(f"{url}/sequences/plain")
    assert (error["status"], code) == (400, 4400)
    assert "keeps no sequences" in error["message"]
    endpoints.endpoints.context.start_draining()
    error, code, _ = await refusal(f"{url}/sequences/noop")
    assert (error["status"], error["cause"], code) == (503, "draining", 1013)


async def test_a_page_of_another_origin_is_told_the_setting(start: Start) -> None:
    endpoints = await start(FakeServing([FakeModel(stateful=True)]))
    url = str(endpoints.address()).replace("http", "ws")
    error, code, reason = await refusal(f"{url}/sequences/noop")
    assert (error["status"], code) == (403, 4403)
    assert "cors_allowed_origin" in error["message"]
    assert reason == error["message"]


async def test_one_setting_is_enough(start: Start) -> None:
    endpoints = await start(FakeServing([FakeModel(stateful=True)]), cors_allowed_origin=PAGE)
    url = str(endpoints.address()).replace("http", "ws")
    async with connect(f"{url}/sequences/noop", origin=PAGE, subprotocols=[FORM]) as socket:  # type: ignore[arg-type,list-item]
        assert "sequence" in json.loads(await socket.recv())
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    answer = await endpoints.request("OPTIONS", "/predictions/noop", headers=asked)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()


async def test_a_wrong_key_is_told_a_page(start: Start, tmp_path: Path) -> None:
    endpoints = await start(
        FakeServing([FakeModel(stateful=True)]), disable_token_authorization=False, cors_allowed_origin=PAGE
    )
    url = str(endpoints.address()).replace("http", "ws")
    error, code, _ = await refusal(f"{url}/sequences/noop", "bearer.wrong")
    assert (error["status"], code) == (400, 4400)
    assert error["message"].startswith("Token Authorization failed")


async def test_programs_get_a_status(start: Start) -> None:
    endpoints = await start(FakeServing([FakeModel(stateful=True)]))
    url = str(endpoints.address()).replace("http", "ws")
    with pytest.raises(InvalidStatus) as refused:
        await refusal(f"{url}/sequences/ghost", origin=None)
    assert refused.value.response.status_code == 404
