"""An MLServer model answers requests: one each, streams of them, with headers, errors and metrics."""

import asyncio
import json
from typing import Any

import fastapi
import numpy as np
import pytest
from mlserver import MLModel, types
from mlserver.errors import MLServerError
from mlserver.metrics import log
from starlette.exceptions import HTTPException
from tests.contracts.mlserver.frontend import Frontend, tensor
from tests.contracts.mlserver.small_models import Double, InferenceRequest, InferenceResponse, ResponseOutput, respond

from ts.contracts.mlserver import reported_metrics
from ts.protocol.messages import TRUSS


async def test_a_request_gets_the_response_of_predict() -> None:
    frontend = await Frontend(Double).load()
    answer = await frontend.infer([tensor("x", [1, 2])], id="seven").answer()
    assert answer.status == 200
    assert answer.json == {
        "model_name": "mine",
        "id": "seven",
        "parameters": {},
        "outputs": [{"name": "out", "shape": [2], "datatype": "FP32", "data": [2, 4]}],
    }


async def test_the_predictions_path_takes_and_gives_the_same_bodies() -> None:
    frontend = await Frontend(Double).load()
    answer = await frontend.infer([tensor("x", [1])], protocol=None).answer()
    assert answer.outputs == {"out": [2]}
    body = json.dumps({"inputs": [tensor("x", [2])]})
    for name, value in ((None, body.encode()), (b"data", body.encode()), ("body", body)):
        parameters = [("explain", None, "true"), (name, None, value)]
        assert (await frontend.infer(raw=parameters, protocol=None).answer()).outputs == {"out": [4]}
    assert (await frontend.infer(raw=[("explain", None, "true")], protocol=None).answer()).status == 400


async def test_a_plain_method_is_as_good_as_a_coroutine() -> None:
    class Plain(MLModel):
        def predict(self, payload: InferenceRequest) -> InferenceResponse:  # type: ignore[override]
            return respond(self, [1])

    assert (await (await Frontend(Plain).load()).infer().answer()).outputs == {"out": [1]}


async def test_headers_reach_the_model_and_come_back_from_it() -> None:
    seen: dict[str, Any] = {}

    class Headers(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            assert payload.parameters is not None
            seen.update(payload.parameters.headers or {}, tag=payload.parameters.tag)  # type: ignore[attr-defined]
            return respond(self, [1], parameters=types.Parameters(headers={"x-mine": "1"}, foo="bar"))

    frontend = await Frontend(Headers).load(server_name="here")
    sent = [(b"X-Tenant", b"seldon")]
    answer = await frontend.infer(headers=sent, id="7", parameters={"tag": "a", "headers": {"fake": 1}}).answer()
    assert seen["x-tenant"] == "seldon"
    assert seen["tag"] == "a"
    assert "fake" not in seen
    assert ":endpoint" not in seen
    assert seen["Ce-Type"] == "io.seldon.serving.inference.request"
    assert answer.json["parameters"] == {"foo": "bar"}
    assert answer.headers["x-mine"] == "1"
    assert answer.headers["ce-source"] == "io.seldon.serving.deployment.here"
    assert answer.headers["ce-id"] == "7"
    assert answer.headers["ce-type"] == "io.seldon.serving.inference.response"
    answer = await frontend.infer(id="7\n8", parameters={"tag": "a"}).answer()
    assert (answer.json["id"], "ce-id" in answer.headers) == ("7\n8", False)


class UntellableError(Exception):
    def __str__(self) -> str:
        raise AttributeError("absent")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MLServerError("Try again", 429), 429, "Try again"),
        (MLServerError("Odd", 200), 500, "Odd"),
        (ValueError("no good"), 500, "builtins.ValueError: no good"),
        (UntellableError(), 500, f"{__name__}.UntellableError: UntellableError"),
        (MemoryError(), 507, "Out of resources"),
        (asyncio.CancelledError(), 500, "The model awaited something that was cancelled."),
        (HTTPException(499, "left"), 500, "left"),
        (HTTPException(204), 204, "No Content"),
    ],
)
async def test_what_a_model_raises_becomes_an_error(error: BaseException, status: int, message: str) -> None:
    class Failing(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            raise error

    answer = await (await Frontend(Failing).load()).infer().answer()
    assert (answer.status, answer.error) == (status, message)


async def test_an_http_exception_is_answered_with_its_status_detail_and_headers() -> None:
    class Tea(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            raise fastapi.HTTPException(418, {"pots": [1]}, {"X-Tea": "green"})

    answer = await (await Frontend(Tea).load()).infer().answer()
    assert (answer.status, answer.error, answer.headers) == (418, '{"pots": [1]}', {"x-tea": "green"})
    assert answer.json == {"pots": [1]}


async def test_all_that_is_wrong_with_a_request_is_told_as_mlserver_tells_it() -> None:
    frontend = await Frontend(Double).load()
    inputs: list[Any] = [{"name": 1, "shape": [1], "datatype": "FP31", "data": [1]}, {"name": "b"}]
    answer = await frontend.infer(inputs, id=5).answer()
    assert answer.status == 422
    assert [(problem["type"], problem["loc"]) for problem in answer.json] == [
        ("string_type", ["body", "id"]),
        ("string_type", ["body", "inputs", 0, "name"]),
        ("enum", ["body", "inputs", 0, "datatype"]),
        *(("missing", ["body", "inputs", 1, name]) for name in ("shape", "datatype", "data")),
    ]
    answer = await frontend.infer([{"name": f"{'x' * 1000}"}] * 1000).answer()
    assert len(answer.json) == 100
    assert not any("input" in problem for problem in answer.json)
    # A request that MLServer takes for its model to judge, and one in a form of which MLServer knows nothing.
    assert (await frontend.infer([tensor("x", [1], shape=[2])]).answer()).status == 400
    answer = await frontend.infer(headers=[(b"Inference-Header-Content-Length", b"2")], raw=b"{}1").answer()
    assert (answer.status, answer.body) == (422, b"")


async def test_all_outputs_come_where_one_is_wanted_that_there_is_not() -> None:
    class Two(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            outputs = [ResponseOutput(name=name, shape=[1], datatype="INT8", data=[1]) for name in ("a", "b")]
            return InferenceResponse(model_name="mine", outputs=outputs)

    frontend = await Frontend(Two).load()
    for wanted, there in ((["a"], {"a"}), (["a", "c"], {"a", "b"}), (["c"], {"a", "b"})):
        answer = await frontend.infer(outputs=[{"name": name} for name in wanted]).answer()
        assert set(answer.outputs) == there


async def test_bad_requests_and_bad_responses_are_told_apart() -> None:
    class NoResponse(MLModel):
        async def predict(self, payload: InferenceRequest) -> Any:
            return {"outputs": []}

    frontend = await Frontend(NoResponse).load()
    assert (await frontend.infer(raw=b"{").answer()).status == 422
    answer = await frontend.infer(parameters={"content_type": 5}).answer()
    assert answer.status == 422
    assert "parameters.content_type is 5" in answer.error
    answer = await frontend.infer().answer()
    assert (answer.status, answer.error) == (500, "The model returned a dict; it must be an InferenceResponse.")
    assert (await frontend.infer(protocol=TRUSS).answer()).status == 501


async def test_a_model_that_is_not_ready_says_so() -> None:
    class Lazy(Double):
        async def load(self) -> bool:
            return False

    frontend = await Frontend(Lazy).load()
    assert not await frontend.runtime.is_healthy()
    answer = await frontend.infer([tensor("x", [1])]).answer()
    assert (answer.status, answer.error) == (503, "Model mine is not ready yet.")
    frontend.model.ready = True
    assert await frontend.runtime.is_healthy()
    assert (await frontend.infer([tensor("x", [1])]).answer()).status == 200


async def test_a_response_that_is_too_large_is_an_error() -> None:
    frontend = await Frontend(Double, size=50).load()
    answer = await frontend.infer([tensor("x", [1])]).answer()
    assert answer.status == 500
    assert "max_response_size is 50" in answer.error


async def test_metrics_leave_with_the_answer() -> None:
    reported_metrics.forward()

    class Measured(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            log(size=3)
            return respond(self, [1])

    frontend = await Frontend(Measured, parameters={"version": "v2"}).load()
    await frontend.infer().answer()
    labels = [["model_name", "mine"], ["model_version", "v2"]]
    assert frontend.connection.metrics == [["size", "Count", "histogram", 3.0, labels, ""]]


async def test_requests_run_at_the_same_time_and_one_can_be_cancelled() -> None:
    running: set[str] = set()
    release = asyncio.Event()

    class Slow(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            assert payload.id is not None
            running.add(payload.id)
            frontend.connection.changed.set()
            try:
                await release.wait()
            finally:
                running.discard(payload.id)
            return respond(self, [1])

    frontend = await Frontend(Slow).load()
    jobs = [frontend.infer(id=each) for each in "abc"]
    await frontend.until(lambda: running == set("abc"))
    jobs[1].leave()
    with pytest.raises(asyncio.CancelledError):
        await jobs[1].task
    assert running == set("ac")
    release.set()
    assert [(await jobs[each].answer()).status for each in (0, 2)] == [200, 200]
    assert not jobs[1].rows  # the event loop of the worker answers it


async def test_unload_is_awaited_at_the_end_and_may_fail() -> None:
    unloaded = []

    class Unloading(Double):
        async def unload(self) -> bool:
            unloaded.append(self.name)
            raise RuntimeError("no")

    frontend = await Frontend(Unloading).load()
    await frontend.runtime.close()
    assert unloaded == ["mine"]


async def test_binary_tensors_are_arrays_from_end_to_end() -> None:
    seen: list[Any] = []

    class Arrays(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            from mlserver.codecs import NumpyCodec

            seen.append(getattr(payload.inputs[0].data, "array", None))
            array = self.decode(payload.inputs[0], default_codec=NumpyCodec)
            array += 1  # a model may write to what it gets
            output = NumpyCodec.encode_output("out", array)
            array += 1  # and what it does to it later is of no concern
            return InferenceResponse(model_name=self.name, outputs=[output])

    frontend = await Frontend(Arrays).load()
    values = np.array([[1, 2, np.nan]], dtype=np.float32)
    text = (
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","parameters":{"binary_data_size":12}}],'
        b'"parameters":{"binary_data_output":true}}'
    )
    length = (b"inference-header-content-length", str(len(text)).encode())
    answer = await frontend.infer(raw=text + values.tobytes(), headers=[length]).answer()
    assert isinstance(seen[0], np.ndarray)
    size = int(answer.headers["inference-header-content-length"])
    np.testing.assert_array_equal(np.frombuffer(answer.body[size:], np.float32), [2, 3, np.nan])
    answer = await frontend.infer([tensor("x", [1, None], shape=[1, 2])]).answer()
    assert answer.outputs == {"out": [2.0, None]}


@pytest.mark.parametrize(
    ("data", "flat"),
    [([[1, 2], [3, 4]], [1, 2, 3, 4]), (5, [5]), (np.ones((2, 2)), [1, 1, 1, 1]), ([], [])],
)
async def test_data_are_flat_however_a_model_writes_them(data: Any, flat: list[Any]) -> None:
    class Writing(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            output = ResponseOutput(name="out", shape=[len(flat)], datatype="FP64", data=data)
            return InferenceResponse(model_name=self.name, outputs=[output])

    assert (await (await Frontend(Writing).load()).infer().answer()).outputs == {"out": flat}


async def test_what_the_model_says_about_itself_is_declared() -> None:
    class Described(Double):
        async def load(self) -> bool:
            self.outputs = [types.MetadataTensor(name="out", datatype="INT64", shape=[-1])]
            return True

    settings: Any = {
        "platform": "mine_v1",
        "versions": ["made with 1.2"],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2], "parameters": {"content_type": "np"}}],
        "parameters": {"content_type": "np"},
        "max_batch_size": 8,
        "max_batch_time": 0.1,
    }
    frontend = await Frontend(Described, **settings).load()
    assert frontend.runtime.declares == {
        "platform": "mine_v1",
        "versions": ["made with 1.2"],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2], "parameters": {"content_type": "np"}}],
        "outputs": [{"name": "out", "datatype": "INT64", "shape": [-1]}],
        "parameters": {"content_type": "np"},
        "decoupled": False,
        "streams_in": False,
        "has_health_check": True,
        "max_batch_size": 8,
        "max_batch_time": 0.1,
        "response_cache": False,
    }


async def test_responses_are_given_again_to_requests_that_ask_the_same() -> None:
    calls: list[Any] = []

    class Counting(Double):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            calls.append(payload.id)
            if payload.inputs[0].data[0] < 0:
                raise MLServerError("negative")
            return await super().predict(payload)

    frontend = await Frontend(Counting).load(cache_size=2)

    async def ask(value: float, **members: Any) -> Any:
        return await frontend.infer([tensor("x", [value])], **members).answer()

    assert (await ask(1, id="a", headers=[(b"x-tenant", b"me")])).outputs == {"out": [2]}
    again = await ask(1, id="b")
    assert (again.outputs, again.json["id"], again.headers["ce-id"]) == ({"out": [2]}, "b", "b")
    assert calls == ["a"]
    await ask(1, id="c", parameters={"top": 1})  # another question
    assert (await ask(2, id="d")).outputs == {"out": [4]}  # the third: the first is dropped
    await ask(1, id="e")
    assert calls == ["a", "c", "d", "e"]
    for name in ("f", "g"):
        assert (await ask(-1, id=name)).status == 400  # what failed is tried again
    assert calls[4:] == ["f", "g"]
