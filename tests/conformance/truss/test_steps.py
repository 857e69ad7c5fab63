"""Where requests are while others run, and what becomes of those whose client leaves."""

import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
import httpx
import pytest
from tests.conformance.grpc_client import target
from tests.conformance.truss.serving import Serving, Truss
from tests.e2e.running_server import eventually

from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse

SLOW_READERS = 2


def limit(number: int, **runtime: Any) -> dict[str, Any]:
    return {"runtime": {"predict_concurrency": number, **runtime}}


TRUSSES = {
    "one_slot": Truss("stages:Stages", limit(1)),
    "two_slots": Truss("stages:Stages", limit(2)),
    "five_slots": Truss("stages:Stages", limit(5)),
    "streams_two_slots": Truss("stages:StreamStages", limit(2)),
    "streamed_postprocess": Truss("stages:StreamedPostprocess", limit(1)),
    "streamed_steps": Truss("streams:StreamedSteps"),
    "sync": Truss("stages:SyncStages", limit(60)),
    "leaving": Truss("stages:Leaving", limit(1)),
    "few_at_once": Truss("stages:Stages", limit(1), {"concurrencyTarget": 2, "jobQueueSize": 1}),
    "watching": Truss("requests:Watching", limit(4)),
    "cancelled": Truss("stages:Leaving", limit(1), {"truss": {"cancelOnDisconnect": True}}),
}


def infer_json(kind: str) -> dict[str, Any]:
    return {"inputs": [{"name": "kind", "datatype": "BYTES", "shape": [1], "data": [kind]}]}


class Stages:
    """A Truss whose steps stop where they are told to."""

    def __init__(self, serving: Serving, name: str) -> None:
        self._serving = serving
        self._name = name
        self._begun: list[Future[httpx.Response]] = []

    def begin(self, request: str, stops: Sequence[str] = ("predict",), **more: Any) -> Future[httpx.Response]:
        """Send a request that stops in the steps ``stops``."""
        self._begun.append(self._serving.begin(self._name, {"name": request, "stops": stops}, **more))
        return self._begun[-1]

    def open(self, *gates: str) -> None:
        """Let requests go on: ``predict a`` is the gate of request ``a`` in predict."""
        self._serving.ask(self._name, gates)

    def inside(self, step: str) -> list[str]:
        """Which requests are in a step now, in the order in which they came in."""
        inside: list[str] = self._serving.ask(self._name, [])["inside"].get(step, [])
        return inside

    def entered(self, step: str) -> list[str]:
        """Which requests have ever come into a step."""
        entered: list[str] = self._serving.ask(self._name, [])["entered"].get(step, [])
        return entered

    def wait_inside(self, step: str, count: int) -> list[str]:
        """Wait until so many requests are in a step."""
        eventually(lambda: len(self.inside(step)) == count, f"{count} requests are in {step}")
        return self.inside(step)


def leaving_client(serving: Serving, name: str, body: bytes, path: str = "") -> socket.socket:
    """Send a request on a connection that the test can cut."""
    url = httpx.URL(serving.running.inference)
    connection = socket.create_connection((url.host, url.port))
    path = path or f"/v1/models/{name}:predict"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


# Slots.


def test_row_27_as_many_predicts_as_there_are_slots_the_next_waits(serving: Serving) -> None:
    stages = Stages(serving, "two_slots")
    first, second = stages.begin("a"), stages.begin("b")
    stages.wait_inside("predict", 2)
    third = stages.begin("c")
    eventually(lambda: "c" in stages.entered("preprocess"), "the third has been preprocessed")
    assert sorted(stages.inside("predict")) == ["a", "b"]
    stages.open("predict a", "predict b")
    assert [first.result().json(), second.result().json()] == ["a", "b"]
    assert stages.wait_inside("predict", 1) == ["c"]
    stages.open("predict c")
    assert third.result().json() == "c"


def test_ten_requests_and_five_slots_the_steps_overlap(serving: Serving) -> None:
    stages = Stages(serving, "five_slots")
    names = [f"r{number}" for number in range(10)]
    begun = [stages.begin(name, ["preprocess", "predict", "postprocess"]) for name in names]
    stages.wait_inside("preprocess", 10)
    stages.open(*(f"preprocess {name}" for name in names))
    first_five = stages.wait_inside("predict", 5)
    assert stages.inside("preprocess") == []
    stages.open(f"predict {first_five[0]}")
    stages.wait_inside("postprocess", 1)
    eventually(lambda: len(stages.entered("predict")) == 6, "a sixth has taken the free slot")
    assert len(stages.inside("predict")) == 5
    stages.open(*(f"{step} {name}" for name in names for step in ("predict", "postprocess")))
    assert sorted(each.result().json() for each in begun) == names


def test_row_28_postprocess_needs_no_slot(serving: Serving) -> None:
    stages = Stages(serving, "one_slot")
    begun = [stages.begin(name, ["postprocess"]) for name in ("p", "q")]
    stages.wait_inside("postprocess", 2)
    stages.open("postprocess p", "postprocess q")
    assert [each.result().json() for each in begun] == ["p", "q"]


def test_row_29_streams_of_postprocess_need_none_either(serving: Serving) -> None:
    begun = [serving.begin("streamed_postprocess", ["1", "2"]) for _ in range(2)]
    eventually(lambda: serving.ask("streamed_postprocess") == 2, "both are streaming")
    serving.ask("streamed_postprocess", "open")
    for each in begun:
        assert each.result().text == "12"
        assert each.result().headers["transfer-encoding"] == "chunked"


def test_row_30_the_stream_of_an_async_postprocess(serving: Serving) -> None:
    with serving.stream("streamed_steps", ["1", "2"]) as response:
        assert b"".join(response.iter_raw()) == b"1122"
        assert response.headers["transfer-encoding"] == "chunked"


def test_row_54_a_client_that_leaves_while_it_waits_never_runs(serving: Serving) -> None:
    stages = Stages(serving, "one_slot")
    running = stages.begin("54a")
    stages.wait_inside("predict", 1)
    queued = leaving_client(serving, "one_slot", b'{"name": "54b", "stops": []}')
    eventually(lambda: "54b" in stages.entered("preprocess"), "the second waits for the slot")
    last = stages.begin("54c", [])
    queued.close()
    stages.open("predict 54a")
    assert [running.result().json(), last.result().json()] == ["54a", "54c"]
    assert "54b" not in stages.entered("predict")


def test_row_55_nothing_is_postprocessed_for_a_client_that_left(serving: Serving) -> None:
    stages = Stages(serving, "one_slot")
    client = leaving_client(serving, "one_slot", b'{"name": "55", "stops": ["predict"]}')
    stages.wait_inside("predict", 1)
    client.close()
    follower = stages.begin("after 55", [])
    stages.open("predict 55")
    assert follower.result().json() == "after 55"
    assert "55" not in stages.entered("postprocess")


def test_row_56_a_slot_is_held_while_a_stream_is_made_not_while_it_is_read(serving: Serving) -> None:
    stages = Stages(serving, "streams_two_slots")
    readers = []
    for number in range(SLOW_READERS):
        body = f'{{"name": "{number}", "stops": ["chunk1"]}}'.encode()
        readers.append(leaving_client(serving, "streams_two_slots", body))
    stages.wait_inside("chunk1", SLOW_READERS)
    third = stages.begin("third", ["chunk0"])
    assert stages.inside("chunk0") == []
    stages.open("chunk1 0", "chunk1 1")
    stages.wait_inside("chunk0", 1)
    fourth = stages.begin("fourth", [])
    assert fourth.result().text == "01"
    stages.open("chunk0 third")
    assert third.result().text == "01"
    for reader in readers:
        reader.close()


# The frontend's own limits.


def test_beyond_the_concurrency_target_requests_wait_in_the_server_and_then_are_refused(serving: Serving) -> None:
    stages = Stages(serving, "few_at_once")
    begun = [stages.begin(name, ["preprocess"]) for name in ("a", "b")]
    eventually(lambda: serving.running.metric("ts_batch_size_sum", model_name="few_at_once") == 2, "two are sent")
    url = "/v1/models/few_at_once:predict"
    queued = serving.begin("few_at_once", {"name": "c", "stops": []})
    eventually(lambda: serving.running.pending("few_at_once") == 1, "the third waits in the server")
    refused = serving.client.post(url, json={"name": "d", "stops": []})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.headers["ts-error-cause"] == "queue_full"
    assert "jobQueueSize" in refused.json()["error"]
    for each in (*begun, queued):
        assert not each.done()
    os.kill(serving.running.describe("few_at_once")[0]["workers"][0]["pid"], signal.SIGKILL)
    assert [each.result().status_code for each in (*begun, queued)] == [500, 500, 200]


# Probes.


def test_rows_14_86_probes_do_not_wait_for_predicts(serving: Serving) -> None:
    begun = [serving.begin("sync", number) for number in range(45)]
    eventually(lambda: serving.ask("sync") == 45, "all are in predict")
    for path in ("", "/loaded"):
        assert serving.get("sync", path).status_code == 200
    assert serving.client.get("/live").status_code == 200
    assert not any(each.done() for each in begun)
    serving.ask("sync", "open")
    assert sorted(each.result().json() for each in begun) == list(range(45))


# Clients that leave.


@pytest.fixture
def leave(serving: Serving) -> Iterator[Any]:
    """Send a request, leave when the model says that it begins, and return what the model saw."""

    def run(kind: str, event: str, name: str = "leaving") -> None:
        client = leaving_client(serving, name, f'"{kind}"'.encode())
        eventually(lambda: f"{kind} begins" in serving.ask(name), "it has begun")
        if kind not in ("plain", "blocking", "cancelled"):
            assert client.recv(12).startswith(b"HTTP/1.1 200")
        client.close()
        eventually(lambda: event in serving.ask(name), event)
        assert serving.predict(name, "next").json() == "served"  # the slot is free

    return run


def test_row_49_a_stream_that_polls_sees_it(leave: Any) -> None:
    leave("polling stream", "polling stream sees it")


def test_row_50_a_plain_predict_sees_it(leave: Any) -> None:
    leave("plain", "plain sees it")


def test_a_predict_that_blocks_the_loop_between_its_questions_sees_it(leave: Any) -> None:
    leave("blocking", "blocking sees it")


def test_row_51_a_plain_generator_sees_it(leave: Any) -> None:
    leave("sync stream", "sync stream sees it")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/watching:predict", "predict"),
        ("/v1/models/watching/v1/messages", "messages"),
        ("/predictions/watching", "predictions"),
        ("/v2/models/watching/infer", infer_json("infer")),
        ("/v2/models/watching/infer_stream", infer_json("infer_stream")),
    ],
)
def test_a_model_sees_it_over_every_kind_of_call(path: str, body: Any, serving: Serving) -> None:
    kind = body if isinstance(body, str) else body["inputs"][0]["data"][0]
    client = leaving_client(serving, "watching", json.dumps(body).encode(), path)
    eventually(lambda: f"{kind} begins" in serving.ask("watching"), "it has begun")
    client.close()
    eventually(lambda: f"{kind} sees it" in serving.ask("watching"), "the model sees it")


def test_a_model_sees_it_over_grpc(serving: Serving) -> None:
    tensor = ModelInferRequest.InferInputTensor(name="kind", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"grpc")
    with grpc.insecure_channel(target(serving.running)) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        call = infer.future(ModelInferRequest(model_name="watching", inputs=[tensor]))
        eventually(lambda: "grpc begins" in serving.ask("watching"), "it has begun")
        call.cancel()
        eventually(lambda: "grpc sees it" in serving.ask("watching"), "the model sees it")


def test_row_52_a_stream_that_never_looks_is_closed(leave: Any) -> None:
    leave("endless stream", "endless stream is closed")


def test_row_53_so_is_the_body_of_a_response(leave: Any) -> None:
    leave("response", "response is closed")


def test_a_model_may_let_the_server_cancel_it(leave: Any) -> None:
    leave("cancelled", "cancelled is cancelled", "cancelled")
