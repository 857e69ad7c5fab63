"""tritonclient over gRPC: streams of requests and responses, and its asyncio twin."""

from __future__ import annotations

import asyncio
import queue
import uuid
from functools import partial
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tests.conformance.grpc_client import target
from tests.conformance.triton_tensors import X, tensor
from tests.e2e.running_server import DEADLINE, eventually
from tritonclient.utils import InferenceServerException


class Stream:
    """An open stream of a client, and what comes of it."""

    def __init__(self, client: triton.InferenceServerClient, **more: Any) -> None:
        self.client = client
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        client.start_stream(partial(lambda answers, result, error: answers.put((result, error)), self._answers), **more)

    def next(self) -> tuple[Any, Any]:
        return self._answers.get(timeout=DEADLINE)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.stop_stream()


def test_three_sequences_on_one_stream_as_in_the_stock_sample(client):
    values = [11, 7, 5, 3, 2, 0, 1]
    sequences = {1000: values, 1001: [-value for value in values], str(uuid.uuid4()): [10 * value for value in values]}
    with Stream(client) as stream:
        for step in range(len(values)):
            for sequence, numbers in sequences.items():
                client.async_stream_infer(
                    "sum",
                    [tensor("INPUT", np.array([[numbers[step]]], np.int32))],
                    request_id=f"{sequence}_{step}",
                    sequence_id=sequence,
                    sequence_start=step == 0,
                    sequence_end=step == len(values) - 1,
                )
        answers = [stream.next() for _ in range(3 * len(values))]
    assert [error for _, error in answers] == [None] * len(answers)
    for sequence, numbers in sequences.items():
        mine = [result for result, _ in answers if result.get_response().id.startswith(f"{sequence}_")]
        assert [result.get_response().id for result in mine] == [f"{sequence}_{step}" for step in range(len(values))]
        assert [int(result.as_numpy("OUTPUT")[0][0]) for result in mine] == np.cumsum(numbers).tolist()


def test_a_failed_request_of_a_stream_and_those_after_it(client):
    with Stream(client) as stream:
        for number, model in enumerate(("arithmetic", "other", "arithmetic")):
            client.async_stream_infer(model, [tensor("x", X)], request_id=str(number))
        answers = [stream.next() for _ in range(3)]
    assert [error is None for _, error in answers] == [True, False, True]
    assert "other" in answers[1][1].message()


def test_a_stream_that_wants_a_status(client):
    with Stream(client, headers={"triton_grpc_error": "true"}) as stream:
        client.async_stream_infer("other", [tensor("x", X)])
        _, error = stream.next()
    assert error.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("empty_final", [False, True])
def test_several_responses_to_a_request(client, empty_final):
    with Stream(client) as stream:
        client.async_stream_infer(
            "count", [tensor("x", np.array([3]))], request_id="7", enable_empty_final_response=empty_final
        )
        finals, numbers = [], []
        while not any(finals):
            result, error = stream.next()
            assert error is None
            response = result.get_response()
            assert response.id == "7"
            finals.append(response.parameters["triton_final_response"].bool_param)
            if response.outputs:
                numbers.append(int(result.as_numpy("number")[0]))
    assert numbers == [0, 1, 2]
    assert len(finals) == 3 + empty_final


def test_a_stream_that_is_cancelled(client, open_models):
    folder = open_models["endless"]
    for name in ("begun", "cancelled"):
        (folder / name).unlink(missing_ok=True)
    Stream(client)
    client.async_stream_infer("endless", [tensor("x", X)])
    eventually((folder / "begun").exists, "the request runs")
    client.stop_stream(cancel_requests=True)
    eventually((folder / "cancelled").exists, "the handler is cancelled")


async def test_the_asyncio_client(open_server):
    async with triton_aio.InferenceServerClient(target(open_server)) as client:
        assert await client.is_server_ready()
        result = await client.infer("arithmetic", [tensor("x", X)], request_id="7")
        assert result.as_numpy("next").tolist() == (X + 1).tolist()
        assert (await client.get_model_config("arithmetic")).config.name == "arithmetic"
        assert (await client.get_inference_statistics("arithmetic")).model_stats[0].name == "arithmetic"
        with pytest.raises(InferenceServerException, match="other"):
            await client.infer("other", [tensor("x", X)])

        async def requests():
            for number in range(4):
                yield {"model_name": "sum", "inputs": [tensor("INPUT", np.array([number]))], "request_id": str(number),
                       "sequence_id": 77, "sequence_start": number == 0, "sequence_end": number == 3}  # fmt: skip

        sums = []
        async with asyncio.timeout(DEADLINE):
            async for result, error in client.stream_infer(requests()):
                assert error is None
                sums.append(int(result.as_numpy("OUTPUT")[0]))
        assert sums == [0, 1, 3, 6]


def test_triton_streams_to_a_model_of_mlserver(client):
    with Stream(client) as stream:
        for each in ("one", "two"):
            client.async_stream_infer("talk", [tensor("text", np.array([[each]], np.object_))], request_id=each)
        answers = [stream.next() for _ in range(4)]
    assert [error for _, error in answers] == [None] * 4
    for each in ("one", "two"):
        mine = [result for result, _ in answers if result.get_response().id == each]
        assert [result.as_numpy("said").ravel()[0] for result in mine] == [f"heard {each}".encode(), b"heard 1 in all"]
        assert [r.get_response().parameters["triton_final_response"].bool_param for r in mine] == [False, True]
