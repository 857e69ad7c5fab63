"""What a handler can answer, row by row: types, statuses, headers, errors, and what that means for its batch-mates."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import RunningServer, eventually, model_folder

#: Does what the JSON of a row says; a whole batch fails if any row says so.
OUTCOMES = (
    WAITING
    + """
from ts.utils.util import PredictionException


class ObedientHandler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        orders = [row["body"] if isinstance(row.get("body"), dict) else {} for row in data]
        for order in orders:
            if "wait" in order:
                wait_for(order["wait"])
            if "raise" in order:
                raise ValueError(order["raise"])
            if "code" in order:
                raise PredictionException(order["message"], order["code"])
            if "whole_result" in order:
                return order["whole_result"]
        return [self.answer(index, order, context, len(data)) for index, order in enumerate(orders)]

    def answer(self, index, order, context, batch_size):
        if "status" in order:
            context.set_response_status(order["status"], order.get("phrase", ""), index)
        for name, value in order.get("headers", {}).items():
            context.set_response_header(index, name, value)
        if "content_type" in order:
            context.set_response_content_type(index, order["content_type"])
        if "bytes" in order:
            return bytearray(order["bytes"])
        if "size" in order:
            return b"x" * order["size"]
        if order.get("unserialisable"):
            return object()
        return order.get("return", {"batch": batch_size})
"""
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "outcomes", OUTCOMES, "batchSize: 8\nmaxBatchDelay: 1\n")
    with RunningServer({"outcomes": folder}, {"max_response_size": 6_000_000, "drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def order(server: RunningServer, /, **what: Any) -> requests.Response:
    return requests.post(f"{server.inference}/predictions/outcomes", json=what, timeout=180)


# What the client gets


def test_results_are_sent_by_their_type(server: RunningServer) -> None:
    assert order(server, **{"return": "text, grüß"}).content == "text, grüß".encode()
    assert order(server, bytes=[0, 255]).content == b"\x00\xff"
    assert order(server, **{"return": {"a": 1, "b": [1]}}).text == '{\n  "a": 1,\n  "b": [\n    1\n  ]\n}'
    assert order(server, **{"return": [1, "x"]}).text == '[\n  1,\n  "x"\n]'
    assert order(server, **{"return": 1.5}).text == "1.5"
    assert order(server, **{"return": None}).text == "null"


def test_a_response_has_torchserves_headers_and_no_content_type_of_its_own(server: RunningServer) -> None:
    headers = order(server).headers
    assert "content-type" not in headers
    assert headers["pragma"] == "no-cache"
    assert headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert headers["expires"] == "Thu, 01 Jan 1970 00:00:00 UTC"
    assert headers["connection"] == "keep-alive"


def test_the_handler_sets_status_headers_and_content_type(server: RunningServer) -> None:
    response = order(
        server,
        status=418,
        phrase="I am a teapot",
        headers={"X-Pot": "brown"},
        content_type="text/x-tea",
        **{"return": "t"},
    )
    assert (response.status_code, response.reason, response.text) == (418, "I am a teapot", "t")
    assert response.headers["x-pot"] == "brown"
    assert response.headers["content-type"] == "text/x-tea"


def test_a_header_that_http_forbids_fails_that_request_alone(server: RunningServer) -> None:
    response = order(server, headers={"X-Bad": "a\nb"})
    assert response.status_code == 500
    assert "X-Bad" in response.json()["message"] or "line break" in response.json()["message"]
    assert order(server).status_code == 200


# What goes wrong


def error(response: requests.Response) -> tuple[int, str, str]:
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert body["code"] == response.status_code
    assert list(body) == ["code", "type", "message"]
    return response.status_code, body["type"], body["message"]


INTERNAL = "InternalServerException"


@pytest.mark.parametrize(
    ("what", "status", "message"),
    [
        ({"raise": "boom"}, 503, "Prediction failed"),
        ({"raise": "CUDA out of memory"}, 507, "Out of resources"),
        ({"code": 422, "message": "no such picture"}, 422, "no such picture"),
        ({"code": 413, "message": "too long"}, 507, "too long"),
        ({"whole_result": "no list"}, 503, "Invalid model predict output"),
        ({"whole_result": [1, 2]}, 503, "number of batch response mismatched"),
        ({"unserialisable": True}, 503, "Unsupported model output data type."),
    ],
)
def test_a_handler_that_fails(server: RunningServer, what: dict[str, Any], status: int, message: str) -> None:
    response = order(server, **what)
    assert error(response) == (status, INTERNAL, message)
    assert response.headers["ts-error-cause"] == ("invalid_request" if status < 500 else "handler_error")
    assert order(server).status_code == 200


def test_a_response_that_is_too_large_fails_that_request_alone(server: RunningServer) -> None:
    response = order(server, size=6_000_001)
    assert error(response)[0] == 500
    assert "max_response_size" in error(response)[2]
    assert [worker["status"] for worker in server.describe("outcomes")[0]["workers"]] == ["READY"]


# Batches


def filled_batch(server: RunningServer, gate: Gate, orders: list[dict[str, Any]]) -> list[requests.Response]:
    """Return the answers to ``orders``, which all wait while the worker is busy and so travel in one batch."""
    with ThreadPoolExecutor(len(orders) + 1) as pool:
        busy = pool.submit(order, server, wait=str(gate.path))
        gate.wait_until_reached()
        answers = []
        for count, what in enumerate(orders, 1):
            answers.append(pool.submit(order, server, **what))
            eventually(partial(is_pending, server, count), f"{count} requests wait")
        gate.open()
        assert busy.result().status_code == 200
        return [answer.result() for answer in answers]


def is_pending(server: RunningServer, count: int) -> bool:
    return bool(server.describe("outcomes")[0]["jobQueueStatus"]["pendingRequests"] == count)


def test_requests_that_wait_travel_in_one_batch(server: RunningServer, tmp_path: Path) -> None:
    answers = filled_batch(server, Gate(tmp_path), [{}] * 8)
    assert [answer.json() for answer in answers] == [{"batch": 8}] * 8


def test_a_bad_row_does_not_touch_its_batch_mates(server: RunningServer, tmp_path: Path) -> None:
    orders: list[dict[str, Any]] = [{"return": str(number)} for number in range(8)]
    orders[2] = {"unserialisable": True}
    orders[4] = {"status": 400, "return": "bad input"}
    orders[6] = {"headers": {"X-Row": "six"}, "return": "6"}
    answers = filled_batch(server, Gate(tmp_path), orders)
    assert [answer.status_code for answer in answers] == [200, 200, 503, 200, 400, 200, 200, 200]
    assert [answers[number].text for number in (0, 1, 3, 5, 6, 7)] == ["0", "1", "3", "5", "6", "7"]
    assert answers[4].text == "bad input"
    assert ["x-row" in answer.headers for answer in answers].index(True) == 6


def test_an_exception_fails_the_whole_batch(server: RunningServer, tmp_path: Path) -> None:
    answers = filled_batch(server, Gate(tmp_path), [{}, {"raise": "boom"}, {}])
    assert [error(answer) for answer in answers] == [(503, INTERNAL, "Prediction failed")] * 3


async def test_many_concurrent_requests_get_their_own_answers(server: RunningServer) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32)) as session:

        async def ask(number: int) -> bool:
            url = f"{server.inference}/predictions/outcomes"
            async with session.post(url, json={"return": str(number)}) as response:
                return await response.text() == str(number)

        assert all(await asyncio.gather(*(ask(number) for number in range(500))))
