"""A model's own REST paths: FastAPI's parameters, any response, errors as JSON."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Body, HTTPException, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from mlserver import MLModel
from mlserver.errors import MLServerError
from mlserver.handlers import custom_handler
from tests.contracts.mlserver.frontend import Frontend
from tests.unit.ts.sent_jobs import DEADLINE


class Custom(MLModel):
    @custom_handler(rest_path="/double/{times}")
    async def double(self, times: int, plus: float = 0, payload: list[float] = Body(...)) -> Any:  # noqa: B008
        return [times * value + plus for value in payload]

    @custom_handler(rest_path="/raw", rest_method="PUT")
    async def raw(self, request: Request) -> Response:
        body = await request.body()
        host = request.client.host if request.client else ""
        return PlainTextResponse(f"{request.url.path} {host} {body.decode()}", 201, {"x-mine": "1"})

    @custom_handler(rest_path="/many", rest_method="GET")
    async def many(self) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(3):
                yield str(number).encode()

        return StreamingResponse(pieces(), media_type="text/plain")

    @custom_handler(rest_path="/broken", rest_method="GET")
    async def broken(self) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"0"
            raise MLServerError("mine", 409)

        return StreamingResponse(pieces(), media_type="text/plain")

    @custom_handler(rest_path="/large", rest_method="GET")
    async def large(self) -> Response:
        return PlainTextResponse("x" * 2000)

    @custom_handler(rest_path="/endless", rest_method="GET")
    async def endless(self) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    @custom_handler(rest_path="/fail/{kind}", rest_method="GET")
    async def fail(self, kind: str) -> None:
        raise {"own": MLServerError("mine", 409), "http": HTTPException(410, "gone"), "other": KeyError("x")}[kind]


begun, ended = asyncio.Event(), asyncio.Event()


async def test_routes_are_declared() -> None:
    frontend = await Frontend(Custom).load()
    assert sorted(frontend.runtime.declares["routes"]) == [
        ["/broken", ["GET"], "broken"],
        ["/double/{times}", ["POST"], "double"],
        ["/endless", ["GET"], "endless"],
        ["/fail/{kind}", ["GET"], "fail"],
        ["/large", ["GET"], "large"],
        ["/many", ["GET"], "many"],
        ["/raw", ["PUT"], "raw"],
    ]


async def test_parameters_are_those_of_fastapi() -> None:
    frontend = await Frontend(Custom).load()
    answer = await frontend.call("POST", "/double/3?plus=1", b"[1, 2.5]").answer()
    assert (answer.status, answer.json) == (200, [4, 8.5])
    assert answer.headers["content-type"] == "application/json"
    answer = await frontend.call("POST", "/double/x", b"[1]").answer()
    assert answer.status == 422
    assert answer.json["detail"][0]["loc"] == ["path", "times"]


async def test_requests_and_responses_pass_through() -> None:
    answer = await (await Frontend(Custom).load()).call("PUT", "/raw", b"hello").answer()
    assert (answer.status, answer.body) == (201, b"/raw 127.0.0.1 hello")
    assert answer.headers["x-mine"] == "1"


async def test_a_streaming_response_comes_in_parts() -> None:
    answer = await (await Frontend(Custom).load()).call("GET", "/many").answer()
    assert [bytes(row[5]) for row in answer.rows if row[5]] == [b"0", b"1", b"2"]
    assert [row[1] for row in answer.rows][-1] is False


async def test_a_streaming_response_that_fails_midway_is_cut() -> None:
    answer = await (await Frontend(Custom).load()).call("GET", "/broken").answer()
    assert [bytes(row[5]) for row in answer.rows if row[5]] == [b"0"]
    assert (answer.status, answer.error) == (409, "mine")


async def test_a_response_over_the_limit_is_an_error() -> None:
    answer = await (await Frontend(Custom, size=1000).load()).call("GET", "/large").answer()
    assert (len(answer.rows), answer.status) == (1, 500)
    assert "max_response_size is 1000" in answer.error


async def test_a_call_is_cancelled_when_its_client_leaves() -> None:
    job = (await Frontend(Custom).load()).call("GET", "/endless")
    async with asyncio.timeout(DEADLINE):
        await begun.wait()
        job.leave()
        with pytest.raises(asyncio.CancelledError):
            await job.task
    assert ended.is_set()


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [
        ("own", 409, {"error": "mine"}),
        ("http", 410, {"detail": "gone"}),
        ("other", 500, {"error": "builtins.KeyError: 'x'"}),
    ],
)
async def test_errors_are_told(kind: str, status: int, body: Any) -> None:
    answer = await (await Frontend(Custom).load()).call("GET", f"/fail/{kind}").answer()
    assert (answer.status, answer.json) == (status, body)
