"""One request from its row to its answer: steps, inputs, the request object, errors, logs, the other protocols."""

import asyncio
import json
import logging
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import fastapi
import pytest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from tests.contracts.truss.worker.frontend import Frontend

from ts.contracts.truss.request_logs import log_request_ids

Serve = Callable[..., Frontend]
FAILED = (500, "600", "Internal Server Error (in model/chainlet).")


class Steps:
    """Functions in all steps."""

    def preprocess(self, inputs: list[int]) -> list[int]:
        return [each + 1 for each in inputs]

    def predict(self, inputs: list[int]) -> dict[str, list[int]]:
        return {"predictions": inputs}

    async def postprocess(self, result: dict[str, list[int]]) -> dict[str, list[int]]:
        return {"predictions": [each + 2 for each in result["predictions"]]}


async def test_the_steps_follow_each_other(serve: Serve) -> None:
    assert (await serve(Steps()).infer([1, 2]).answer()).json == {"predictions": [4, 5]}


async def test_preprocess_may_yield_what_predict_takes(serve: Serve) -> None:
    class Model:
        async def preprocess(self, inputs: int) -> AsyncIterator[int]:
            for number in range(inputs):
                yield number

        async def predict(self, inputs: AsyncIterator[int]) -> list[int]:
            return [each async for each in inputs]

    assert (await serve(Model()).infer(3).answer()).json == [0, 1, 2]


async def test_a_function_that_returns_a_coroutine(serve: Serve) -> None:
    class Model:
        async def hidden(self, inputs: Any) -> Any:
            return inputs

        def predict(self, inputs: Any) -> Any:
            return self.hidden(inputs)

    assert (await serve(Model()).infer("x").answer()).json == "x"


class Asks:
    """Tells what it sees of the request."""

    def preprocess(self, request: Request) -> Any:
        request.state.seen = request.method
        return {"host": request.headers["host"], "query": dict(request.query_params)}

    async def predict(self, inputs: Any, request: fastapi.Request) -> Any:
        body = await request.body()
        again = await request.body()
        client = request.client
        assert client is not None
        return inputs | {
            "body": body.decode("latin-1"),
            "again": body == again,
            "state": request.state.seen,
            "path": request.url.path,
            "cookies": request.cookies,
            "client": [client.host, client.port],
            "gone": await request.is_disconnected(),
            "model": request.path_params["model_name"],
        }

    def postprocess(self, result: Any, request: Request) -> Any:
        return result | {"same": request.state.seen}


async def test_the_request(serve: Serve) -> None:
    headers = ((b"Host", b"here:80"), (b"Cookie", b"a=b"), (":method", "POST"))
    answer = await serve(Asks()).infer(raw=b"\xffnot json", headers=headers).answer()
    assert answer.json == {
        "host": "here:80",
        "query": {"q": "1"},
        "body": "ÿnot json",
        "again": True,
        "state": "POST",
        "path": "/v1/models/mine:predict",
        "cookies": {"a": "b"},
        "client": ["127.0.0.1", 5],
        "gone": False,
        "model": "mine",
        "same": "POST",
    }


async def test_the_body_can_be_streamed_and_the_call_s_end_is_a_disconnect(serve: Serve) -> None:
    class Model:
        async def predict(self, request: Request) -> Any:
            self.request = request
            return [chunk.decode() async for chunk in request.stream()]

    frontend = serve(Model())
    assert (await frontend.infer(raw=b"raw").answer()).json == ["raw", ""]
    assert await frontend.model.request.is_disconnected()


async def test_a_departure_is_told_at_once(serve: Serve) -> None:
    class Model:
        def __init__(self) -> None:
            self.seen: list[bool] = []
            self.request: Request | None = None

        async def predict(self, request: Request) -> None:
            self.request = request
            with request.state.watch_disconnect() as gone:
                while not gone.is_set():
                    await asyncio.sleep(0)
                self.seen.append(await request.is_disconnected())

    frontend = serve(Model())
    job = frontend.infer()
    await frontend.until(lambda: frontend.model.request is not None)
    assert not await frontend.model.request.is_disconnected()
    job.leave()
    assert await frontend.model.request.is_disconnected()
    await job.answer()
    assert frontend.model.seen == [True]


class Aliases:
    def predict(self, request: Request) -> str:
        return "predicted"

    def chat_completions(self, inputs: Any) -> Any:
        return {"chat": inputs}

    async def completions(self, request: Request) -> str:
        return (await request.body()).decode()

    def embeddings(self) -> str:
        return "nothing needed"


async def test_each_endpoint_decodes_what_it_needs(serve: Serve) -> None:
    frontend = serve(Aliases())
    bad = {"raw": b"not json"}
    assert (await frontend.infer(**bad).answer()).json == "predicted"  # type: ignore[arg-type]
    chat = frontend.infer({"a": 1}, endpoint="chat_completions")
    assert (await chat.answer()).json == {"chat": {"a": 1}}
    assert (await frontend.infer(**bad, endpoint="chat_completions").answer()).problem[:2] == (400, "700")  # type: ignore[arg-type]
    assert (await frontend.infer(**bad, endpoint="completions").answer()).json == "not json"  # type: ignore[arg-type]
    assert (await frontend.infer(**bad, endpoint="embeddings").answer()).json == "nothing needed"  # type: ignore[arg-type]
    status, code, told = (await frontend.infer({}, endpoint="messages").answer()).problem
    assert (status, code) == (404, "700")
    assert "`messages` can only be called if it is implemented" in told
    assert (await frontend.infer(**bad, endpoint="messages").answer()).problem[0] == 400  # type: ignore[arg-type]


class In(BaseModel):
    prompt: str


class Out(BaseModel):
    text: str


class Typed:
    def predict(self, inputs: In) -> Out:
        return Out(text=inputs.prompt)

    def messages(self, inputs: Out) -> Any:
        return type(inputs).__name__


async def test_typed_inputs_and_results(serve: Serve) -> None:
    frontend = serve(Typed())
    assert (await frontend.infer({"prompt": "v"}).answer()).json == {"text": "v"}
    assert (await frontend.infer({}).answer()).problem == (
        400,
        "700",
        "Input Parsing Error:\n  `prompt`: Field required.",
    )
    assert (await frontend.infer({"text": "t"}, endpoint="messages").answer()).json == "Out"
    schema = frontend.runtime.declares["schema"]
    assert (schema["input_schema"]["title"], schema["output_schema"]["title"]) == ("In", "Out")
    assert schema["supports_streaming"] is False
    assert frontend.runtime.declares["example"] == {"prompt": "hello"}


class Odd(BaseModel, json_schema_extra={"required": 5}):
    prompt: str


async def test_a_type_with_a_wrong_schema_has_no_example(serve: Serve) -> None:
    class Model:
        def predict(self, inputs: Odd) -> str:
            return inputs.prompt

    frontend = serve(Model())
    assert "example" not in frontend.runtime.declares
    assert (await frontend.infer({"prompt": "v"}).answer()).json == "v"


# Errors


class Fails:
    async def predict(self, inputs: str) -> Any:
        getattr(self, inputs)()

    def value(self) -> None:
        raise ValueError("private")

    def fastapis(self) -> None:
        raise fastapi.HTTPException(422, {"a": 1}, headers={"Retry-After": "3"})

    def as_text(self) -> None:
        raise HTTPException(400, "no", headers={"Content-Type": "text/plain"})

    def starlettes(self) -> None:
        raise HTTPException(404, "nowhere")

    def unsayable(self) -> None:
        raise HTTPException(404, object())  # type: ignore[arg-type]

    def no_status(self) -> None:
        raise HTTPException(999, "what")

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def helper(self) -> None:
        module = types.ModuleType("deep")
        exec(compile("def fail():\n    raise KeyError('deep')", "deep.py", "exec"), module.__dict__)
        module.fail()


@pytest.mark.parametrize("what", ["value", "unsayable", "no_status", "interrupt", "no_such_method"])
async def test_details_of_errors_are_in_the_log_only(serve: Serve, what: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = await serve(Fails()).infer(what).answer()
    assert answer.problem == FAILED
    assert answer.body == json.dumps({"error": FAILED[2]}).encode()
    assert "Traceback" in caplog.text


async def test_http_exceptions_keep_status_detail_and_headers(serve: Serve) -> None:
    frontend = serve(Fails())
    answer = await frontend.infer("fastapis").answer()
    assert answer.problem == (422, "600", {"a": 1})
    assert answer.headers["retry-after"] == "3"
    assert (await frontend.infer("starlettes").answer()).problem == (404, "600", "nowhere")


async def test_an_http_exception_may_have_a_content_type_of_its_own(serve: Serve) -> None:
    answer = await serve(Fails()).infer("as_text").answer()
    assert [value for name, value in answer.rows[0].headers if name == "content-type"] == ["text/plain"]


async def test_a_traceback_begins_in_the_model_s_file(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    frontend = serve(Fails())
    await frontend.infer("helper").answer()
    (record,) = [record for record in caplog.records if record.exc_info]
    told = logging.Formatter().format(record)
    first, second = [line for line in told.splitlines() if line.startswith("  File")][:2]
    assert Path(__file__).name in first
    assert first.endswith("in predict"), told
    assert second.endswith("in helper")
    assert "deep.py" in told
    assert "call.py" not in told


async def test_lines_of_a_request_know_its_ids(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Model:
        async def preprocess(self, inputs: Any) -> Any:
            logging.getLogger("model").warning("pre")
            return inputs

        def predict(self, inputs: Any) -> Iterator[str]:
            logging.getLogger("model").warning("chunk")
            yield ""

    factory = logging.getLogRecordFactory()
    try:
        log_request_ids()
        frontend = serve(Model())
        headers = ((b"X-Baseten-Request-Id", b"r1"), (b"x-baseten-chain-request-id", b"c1"))
        await frontend.infer(headers=headers).answer()
        await frontend.infer().answer()
    finally:
        logging.setLogRecordFactory(factory)
    told = [(record.message, getattr(record, "request_id", None)) for record in caplog.records]
    assert told == [("pre", "r1"), ("chunk", "r1"), ("pre", None), ("chunk", None)]
    assert caplog.records[0].chain_request_id == "c1"  # type: ignore[attr-defined]


# Health


@pytest.mark.parametrize(
    ("answer", "expected", "told"),
    [(True, True, 0), (34, True, 0), (None, True, 0), (False, False, 1), ("", False, 1), ({}, False, 1)],
)
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_health(
    serve: Serve, answer: Any, expected: bool, told: int, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Model:
        def predict(self) -> None: ...

        if asynchronous:

            async def is_healthy(self) -> Any:
                return answer
        else:

            def is_healthy(self) -> Any:
                return answer

    frontend = serve(Model())
    assert await frontend.runtime.is_healthy() is expected
    assert len(caplog.records) == told
    assert frontend.runtime.declares["has_health_check"]


async def test_a_health_check_that_fails(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Model:
        def predict(self) -> None: ...

        def is_healthy(self) -> None:
            raise ValueError("not well")

    assert not await serve(Model()).runtime.is_healthy()
    assert "not well" in caplog.text
