"""Requests that arrive together are one call of the model, and each gets its own rows back."""

import asyncio
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlserver import MLModel, types
from mlserver.errors import MLServerError
from tests.contracts.mlserver.frontend import Frontend, tensor
from tests.examples import examples

from ts.contracts.mlserver.batching import AdaptiveBatcher
from ts.protocol.log_records import running

BATCHED: Any = {"max_batch_size": 3, "max_batch_time": 60.0}


class Recording(MLModel):
    """Doubles its input, and keeps what it was called with."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.calls: list[types.InferenceRequest] = []

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        self.calls.append(payload)
        outputs = [
            types.ResponseOutput(
                name=each.name,
                shape=each.shape,
                datatype=each.datatype,
                data=[2 * value for value in each.data],
                parameters=each.parameters,
            )
            for each in payload.inputs
        ]
        return types.InferenceResponse(model_name=self.name, outputs=outputs, parameters=payload.parameters)


async def test_a_full_batch_is_one_call() -> None:
    frontend = await Frontend(Recording, **BATCHED).load()
    rows = [[1, 2], [3, 4, 5, 6], [7, 8]]
    jobs = [
        frontend.infer([tensor("x", row, shape=[len(row) // 2, 2])], id=name)
        for name, row in zip("abc", rows, strict=True)
    ]
    answers = [await job.answer() for job in jobs]
    (call,) = frontend.model.calls  # type: ignore[attr-defined]
    assert call.id is None
    assert (call.inputs[0].shape, list(call.inputs[0].data)) == ([4, 2], [1, 2, 3, 4, 5, 6, 7, 8])
    for answer, row, name in zip(answers, rows, "abc", strict=True):
        assert answer.json["id"] == name
        assert answer.json["outputs"][0]["shape"] == [len(row) // 2, 2]
        assert answer.outputs == {"x": [2 * value for value in row]}


async def test_a_batch_that_is_not_full_runs_when_its_time_is_over() -> None:
    frontend = await Frontend(Recording, max_batch_size=100, max_batch_time=0.01).load()
    jobs = [frontend.infer([tensor("x", [number])]) for number in range(4)]
    assert [(await job.answer()).outputs["x"] for job in jobs] == [[0], [2], [4], [6]]
    assert len(frontend.model.calls) == 1  # type: ignore[attr-defined]


async def test_parameters_are_merged_and_split_as_mlserver_does() -> None:
    frontend = await Frontend(Recording, **BATCHED).load()
    jobs = [
        frontend.infer(
            [tensor("x", [number], parameters={"tag": number, "content_type": "np"})],
            parameters={"who": number, "first": True} if not number else {"who": number},
            outputs=[{"name": "x", "parameters": {"top": number}}],
        )
        for number in range(3)
    ]
    answers = [await job.answer() for job in jobs]
    (call,) = frontend.model.calls  # type: ignore[attr-defined]
    parameters = call.parameters.model_dump()
    assert {name: parameters[name] for name in ("who", "first")} == {"who": 2, "first": True}
    assert call.inputs[0].parameters.model_dump() == {"tag": [0, 1, 2], "content_type": "np"}
    assert call.outputs[0].parameters.model_dump() == {"top": 2}
    for number, answer in enumerate(answers):
        assert answer.json["outputs"][0]["parameters"] == {"tag": str(number), "content_type": "np"}
        assert answer.json["parameters"]["who"] == 2


async def test_requests_that_do_not_fit_together_run_apart() -> None:
    frontend = await Frontend(Recording, max_batch_size=2, max_batch_time=60).load()
    together = [
        [tensor("x", [1]), tensor("y", [2])],
        [tensor("y", [3]), tensor("x", [4])],
        [tensor("x", [1], "INT32")],
        [tensor("x", [2], "INT32")],
        [tensor("x", [1], "INT32", parameters={"content_type": "np"})],
        [tensor("x", [5], "INT32", parameters={"content_type": "np"})],
        [tensor("x", [1, 2], shape=[1, 2])],
        [tensor("x", [3, 4], shape=[1, 2])],
    ]
    alone = [[tensor("x", [9], shape=[])], [tensor("x", [1, 1]), tensor("y", [1])]]
    jobs = [frontend.infer(inputs) for inputs in (*together, *alone)]
    answers = [await job.answer() for job in jobs]
    assert [answer.status for answer in answers] == [200] * 10
    assert answers[1].outputs == {"x": [8], "y": [6]}
    assert len(frontend.model.calls) == 6  # type: ignore[attr-defined]


async def test_what_a_batch_logs_is_about_all_its_requests() -> None:
    about: list[list[tuple[str, str]]] = []

    class Logging(Recording):
        async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
            about.append(list(running.get()()))
            return await super().predict(payload)

    frontend = await Frontend(Logging, **BATCHED).load()
    jobs = []
    for name in "abc":
        before = running.set(lambda name=name: [(name, "")])  # type: ignore[misc]
        jobs.append(frontend.infer([tensor("x", [1])]))
        running.reset(before)
    for job in jobs:
        assert (await job.answer()).status == 200
    assert about == [[("a", ""), ("b", ""), ("c", "")]]


async def test_a_failing_batch_fails_for_all_its_requests() -> None:
    class Failing(MLModel):
        async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
            raise MLServerError("no", 418)

    frontend = await Frontend(Failing, **BATCHED).load()
    jobs = [frontend.infer([tensor("x", [1])]) for _ in range(3)]
    assert [(await job.answer()).status for job in jobs] == [418] * 3


class Echo(MLModel):
    """Gives back what it gets, unread."""

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        outputs = [
            types.ResponseOutput(name=each.name, shape=each.shape, datatype=each.datatype, data=each.data)
            for each in payload.inputs
        ]
        return types.InferenceResponse(model_name=self.name, outputs=outputs)


@pytest.mark.parametrize("cls", [Echo, Recording])
async def test_large_requests_in_json_are_joined_with_all_their_digits_and_do_not_fail_each_other(
    cls: type[MLModel],
) -> None:
    frontend = await Frontend(cls, **BATCHED).load()
    many = 20_000
    too_large_for_fp32 = 1e39
    jobs = [frontend.infer([tensor("x", [value] * many)]) for value in (0.1, too_large_for_fp32, 0.3)]
    factor = 2 if cls is Recording else 1
    for job, value in zip(jobs, (0.1, too_large_for_fp32, 0.3), strict=True):
        assert (await job.answer()).outputs["x"] == [factor * value] * many


async def test_a_large_request_in_json_and_a_binary_one_are_joined() -> None:
    frontend = await Frontend(Echo, **BATCHED | {"max_batch_size": 2}).load()
    many = 20_000
    raw = struct.pack(f"<{many}f", *[0.5] * many)
    head = json.dumps(
        {"inputs": [{"name": "x", "shape": [many], "datatype": "FP32", "parameters": {"binary_data_size": len(raw)}}]}
    ).encode()
    length = [(b"inference-header-content-length", str(len(head)).encode())]
    jobs = [frontend.infer(raw=head + raw, headers=length), frontend.infer([tensor("x", [0.25] * many)])]
    assert [(await job.answer()).outputs["x"] for job in jobs] == [[0.5] * many, [0.25] * many]


async def test_a_batch_that_the_model_itself_cancels_fails_for_all_its_requests() -> None:
    class Cancelling(MLModel):
        async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
            raise asyncio.CancelledError

    frontend = await Frontend(Cancelling, **BATCHED).load()
    jobs = [frontend.infer([tensor("x", [1])]) for _ in range(3)]
    for job in jobs:
        answer = await job.answer()
        assert (answer.status, answer.error) == (500, "The model awaited something that was cancelled.")


async def test_a_response_that_cannot_be_split_says_why() -> None:
    class Summing(MLModel):
        async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
            output = types.ResponseOutput(name="sum", shape=[1], datatype="FP32", data=[sum(payload.inputs[0].data)])
            return types.InferenceResponse(model_name=self.name, outputs=[output])

    frontend = await Frontend(Summing, **BATCHED).load()
    jobs = [frontend.infer([tensor("x", [1, 2])]) for _ in range(3)]
    for job in jobs:
        answer = await job.answer()
        assert answer.status == 500
        assert "a batch of 6 rows but its output 'sum' has the shape [1]" in answer.error


async def test_a_cancelled_request_leaves_its_batch_before_it_runs() -> None:
    frontend = await Frontend(Recording, **BATCHED).load()
    jobs = [frontend.infer([tensor("x", [number])]) for number in range(2)]
    await asyncio.sleep(0)
    jobs[0].leave()
    with pytest.raises(asyncio.CancelledError):
        await jobs[0].task
    jobs += [frontend.infer([tensor("x", [number])]) for number in (2, 3)]
    assert [(await job.answer()).outputs["x"] for job in jobs[1:]] == [[2], [4], [6]]
    assert len(frontend.model.calls) == 1  # type: ignore[attr-defined]


class Held(Recording):
    """Waits until it may answer."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.release = asyncio.Event()
        self.was_cancelled = False

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        response = await super().predict(payload)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return response


async def test_a_cancelled_request_does_not_disturb_the_others_of_a_running_batch() -> None:
    frontend = await Frontend(Held, **BATCHED).load()
    model: Any = frontend.model
    jobs = [frontend.infer([tensor("x", [number])]) for number in range(3)]
    while not model.calls:
        await asyncio.sleep(0)
    jobs[1].leave()
    with pytest.raises(asyncio.CancelledError):
        await jobs[1].task
    model.release.set()
    assert [(await jobs[each].answer()).outputs["x"] for each in (0, 2)] == [[0], [4]]
    assert not model.was_cancelled


async def test_a_running_batch_is_cancelled_when_nobody_is_left() -> None:
    frontend = await Frontend(Held, **BATCHED).load()
    model: Any = frontend.model
    jobs = [frontend.infer([tensor("x", [number])]) for number in range(3)]
    while not model.calls:
        await asyncio.sleep(0)
    for job in jobs:
        job.leave()
    for job in jobs:
        with pytest.raises(asyncio.CancelledError):
            await job.task
    while not model.was_cancelled:
        await asyncio.sleep(0)


async def test_streams_are_not_batched() -> None:
    frontend = await Frontend(Recording, **BATCHED).load()
    answer = await frontend.infer([tensor("x", [1])], endpoint="infer_stream").answer()
    assert answer.events[0]["outputs"][0]["data"] == [2]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["x", "y"]), st.booleans(), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.integers(2, 4),
)
def test_every_request_gets_its_own_rows_whatever_happens_to_the_others(plan: Any, size: int) -> None:
    async def predict(request: types.InferenceRequest) -> types.InferenceResponse:
        await asyncio.sleep(0)
        outputs = [
            types.ResponseOutput(name=each.name, shape=each.shape, datatype=each.datatype, data=list(each.data))
            for each in request.inputs
        ]
        return types.InferenceResponse(model_name="m", outputs=outputs)

    async def play() -> None:
        batcher = AdaptiveBatcher(predict, size, 0.001)
        tasks = []
        for number, (rows, name, cancelled, pauses) in enumerate(plan):
            data = types.TensorData([number] * rows)
            given = types.RequestInput(name=name, shape=[rows], datatype="INT64", data=data)
            task = asyncio.create_task(batcher.predict(types.InferenceRequest(id=str(number), inputs=[given])))
            tasks.append(task)
            for _ in range(pauses):
                await asyncio.sleep(0)
            if cancelled:
                task.cancel()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, ((rows, name, cancelled, _), answer) in enumerate(zip(plan, answers, strict=True)):
            if isinstance(answer, asyncio.CancelledError):
                assert cancelled
                continue
            assert isinstance(answer, types.InferenceResponse)
            (output,) = answer.outputs
            assert (output.name, output.shape) == (name, [rows])
            assert list(output.data) == [number] * rows

    asyncio.run(play())
