"""Asynchronous handlers (asyncCommunication): requests that overlap, streams, cancellation, crashes, an LLM handler."""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e.gate import Gate
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import RunningServer, eventually, model_folder

#: ``hold NAME`` answers when ``release NAME`` was asked; ``parts NAME`` streams, each further part on its release.
HANDLER = """
import asyncio
import os

from ts.handler_utils.utils import send_intermediate_predict_response


class Handler:
    def initialize(self, context):
        self.directory = context.system_properties["model_dir"]
        self.gates = {}
        self.running = 0
        self.most = 0

    def gate(self, name):
        return self.gates.setdefault(name, asyncio.Event())

    async def handle(self, data, context):
        command, _, name = data[0]["body"].partition(" ")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return [await getattr(self, command)(name, context)]
        except asyncio.CancelledError:
            open(f"{self.directory}/cancelled-{name}", "w").close()
            raise
        finally:
            self.running -= 1

    async def hold(self, name, context):
        open(f"{self.directory}/{name}.reached", "w").close()
        await self.gate(name).wait()
        return name

    async def release(self, name, context):
        self.gate(name).set()
        return "released"

    async def parts(self, name, context):
        for number in range(3):
            send_intermediate_predict_response([f"{name}{number}"], context.request_ids, "ok", 200, context)
            await self.gate(f"{name}{number}").wait()
        return "end"

    async def cling(self, name, context):
        open(f"{self.directory}/{name}.reached", "w").close()
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

    async def told(self, name, context):
        return {"running": self.running, "most": self.most, "pid": os.getpid()}
"""

#: An engine that batches for itself: every step gives each running request a token.
ENGINE = """
import asyncio


class Engine:
    def __init__(self):
        self.requests = {}
        self.loop = None

    async def generate(self, prompt, max_tokens, request_id):
        queue = self.requests[request_id] = asyncio.Queue()
        if self.loop is None:
            self.loop = asyncio.create_task(self.run())
        try:
            for number in range(max_tokens):
                await queue.get()
                yield f"{prompt}{number} "
        finally:
            del self.requests[request_id]

    async def run(self):
        while True:
            for queue in list(self.requests.values()):
                queue.put_nowait(None)
            await asyncio.sleep(0)
"""

#: The shape of TorchServe's handlers for vLLM: the engine batches, and routes lie below the model's name.
LLM_HANDLER = """
import json
import time

from engine import Engine

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler


class FakeLLMHandler(BaseHandler):
    def __init__(self):
        super().__init__()
        self.initialized = False

    def initialize(self, ctx):
        self.model_name = ctx.model_yaml_config["handler"]["served_model_name"]
        self.engine = Engine()
        self.initialized = True

    async def handle(self, data, context):
        start_time = time.time()
        metrics = context.metrics
        data_preprocess = await self.preprocess(data, context)
        output = await self.inference(data_preprocess, context)
        metrics.add_time("HandlerTime", round((time.time() - start_time) * 1000, 2), None, "ms")
        return output

    async def preprocess(self, requests, context):
        assert len(requests) == 1, "Expecting batch_size = 1"
        data = requests[0].get("data") or requests[0].get("body")
        if isinstance(data, (bytes, bytearray)):
            data = data.decode("utf-8")
        return [data]

    async def inference(self, input_batch, context):
        url_path = context.get_request_header(0, "url_path")
        if url_path == "v1/models":
            return [{"data": [{"id": self.model_name}]}]
        if url_path != "v1/completions":
            context.set_response_status(404, "Not Found", 0)
            return [{"error": f"no route {url_path}"}]
        (request,) = input_batch
        tokens = self.engine.generate(request["prompt"], request["max_tokens"], context.request_ids[0])
        if not request.get("stream"):
            return [{"text": "".join([token async for token in tokens])}]
        context.set_response_content_type(0, "text/event-stream")
        async for token in tokens:
            message = f"data: {json.dumps({'text': token})}\\n\\n"
            send_intermediate_predict_response([message], context.request_ids, "Result", 200, context)
        return ["data: [DONE]\\n\\n"]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    asynchronous = "asyncCommunication: true\n"
    return {
        "async": model_folder(directory, "async", HANDLER, asynchronous),
        "impatient": model_folder(directory, "impatient", HANDLER, f"{asynchronous}responseTimeout: 1\n"),
        "few": model_folder(directory, "few", HANDLER, f"{asynchronous}responseTimeout: 1\nconcurrencyTarget: 2\n"),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(folders, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def llm(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a model that is served as TorchServe's examples serve an LLM."""
    config = "asyncCommunication: true\nhandler:\n  served_model_name: tiny\n"
    folder = model_folder(tmp_path_factory.mktemp("models"), "llm", LLM_HANDLER, config)
    (folder / "engine.py").write_text(ENGINE)
    registered = server.register(folder)
    assert registered.status_code == 200, registered.text
    return f"{server.inference}/predictions/llm/1.0"


@pytest.fixture
def send(server: RunningServer) -> Iterator[Callable[[str, str], Future[requests.Response]]]:
    """Post in the background."""
    with ThreadPoolExecutor(max_workers=64) as pool:
        yield lambda model, body: pool.submit(server.predict, model, body)


def stream(server: RunningServer, model: str, body: str) -> RawClient:
    client = RawClient(server.inference)
    client.post(f"/predictions/{model}", body.encode(), "Content-Type: text/plain")
    return client


# Overlapping requests


def test_answers_come_out_of_order(
    server: RunningServer, folders: dict[str, Path], send: Callable[[str, str], Future[requests.Response]]
) -> None:
    first = send("async", "hold first")
    Gate(folders["async"], "first").wait_until_reached()
    assert server.predict("async", "told").json()["running"] == 2
    second = send("async", "hold second")
    Gate(folders["async"], "second").wait_until_reached()
    assert server.predict("async", "release second").text == "released"
    assert second.result().text == "second"
    assert not first.done()
    assert server.predict("async", "release first").text == "released"
    assert first.result().text == "first"


def test_many_run_at_once_in_one_worker(
    server: RunningServer, send: Callable[[str, str], Future[requests.Response]]
) -> None:
    requests_ = [send("async", "hold crowd") for _ in range(50)]
    eventually(lambda: server.predict("async", "told").json()["running"] == 51, "50 requests run at once")
    assert server.pending("async") == 0
    server.predict("async", "release crowd")
    assert [request.result().text for request in requests_] == ["crowd"] * 50
    described = server.describe("async")[0]
    assert (described["batchSize"], len(described["workers"])) == (1, 1)


def test_two_stream_at_once(server: RunningServer) -> None:
    with stream(server, "async", "parts x") as x, stream(server, "async", "parts y") as y:
        assert [client.head().headers["transfer-encoding"] for client in (x, y)] == ["chunked", "chunked"]
        assert [x.chunk(), y.chunk()] == [b"x0", b"y0"]
        for number in range(2):
            server.predict("async", f"release y{number}")
            assert y.chunk() == f"y{number + 1}".encode()
        server.predict("async", "release y2")
        assert [y.chunk(), y.chunk()] == [b"end", b""]
        for number in range(2):
            server.predict("async", f"release x{number}")
            assert x.chunk() == f"x{number + 1}".encode()
        server.predict("async", "release x2")
        assert [x.chunk(), x.chunk()] == [b"end", b""]


# Clients that leave, requests that hang, workers that die


def test_a_client_that_leaves_cancels_its_call_and_no_other(
    server: RunningServer, folders: dict[str, Path], send: Callable[[str, str], Future[requests.Response]]
) -> None:
    stays = send("async", "hold stays")
    with stream(server, "async", "hold leaves"):
        for name in ("stays", "leaves"):
            Gate(folders["async"], name).wait_until_reached()
    eventually((folders["async"] / "cancelled-leaves").exists, "the call of the client that left is cancelled")
    with stream(server, "async", "parts streams") as client:
        client.head()
        assert client.chunk() == b"streams0"
    eventually((folders["async"] / "cancelled-streams").exists, "the call of the stream is cancelled")
    server.predict("async", "release stays")
    assert stays.result().text == "stays"


def test_a_request_that_hangs_is_ended_though_others_are_answered(
    server: RunningServer, folders: dict[str, Path], send: Callable[[str, str], Future[requests.Response]]
) -> None:
    pid = server.predict("impatient", "told").json()["pid"]
    hangs = send("impatient", "hold hangs")
    while not hangs.done():
        assert server.predict("impatient", "told").json()["pid"] == pid
    answer = hangs.result()
    assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "response_timeout")
    eventually((folders["impatient"] / "cancelled-hangs").exists, "the call that hangs is cancelled")
    assert server.predict("impatient", "told").json() == {"running": 1, "most": 2, "pid": pid}


def test_a_place_that_a_call_does_not_give_back_comes_back_with_another_worker(
    server: RunningServer, send: Callable[[str, str], Future[requests.Response]]
) -> None:
    pid = server.predict("few", "told").json()["pid"]
    clings = send("few", "cling alone")

    def answered_by_another() -> bool:
        """Requests keep the worker heard; none of them may fail while it is replaced."""
        answer = server.predict("few", "told")
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["pid"] != pid)

    eventually(answered_by_another, "the worker is replaced")
    answer = clings.result()
    assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "response_timeout")
    assert server.predict("few", "told").json()["running"] == 1


def test_the_places_of_clients_that_left_come_back_with_another_worker(
    server: RunningServer, folders: dict[str, Path]
) -> None:
    pid = server.predict("few", "told").json()["pid"]
    for name in ("first", "second"):
        with stream(server, "few", f"cling {name}"):
            Gate(folders["few"], name).wait_until_reached()
    assert server.predict("few", "told").json()["pid"] != pid


def test_requests_of_a_worker_that_dies_are_answered_by_the_next_one(
    server: RunningServer, folders: dict[str, Path], send: Callable[[str, str], Future[requests.Response]]
) -> None:
    (worker,) = server.describe("async")[0]["workers"]
    requests_ = [send("async", f"hold dies{number}") for number in range(5)]
    for number in range(5):
        Gate(folders["async"], f"dies{number}").wait_until_reached()
    with stream(server, "async", "parts dies") as client:
        client.head()
        assert client.chunk() == b"dies0"
        psutil.Process(worker["pid"]).kill()
        with pytest.raises(ConnectionError):
            client.chunk()
    for number in range(5):  # they run again, each alone for at most a second
        assert server.predict("async", f"release dies{number}").text == "released"
    assert [request.result().status_code for request in requests_] == [200] * 5
    assert server.predict("async", "told").json()["pid"] != worker["pid"]


def test_batches_are_refused_when_the_model_is_registered(server: RunningServer, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "batches", HANDLER, "asyncCommunication: true\nbatchSize: 4\n")
    refused = server.register(folder)
    assert refused.status_code == 400
    assert "asyncCommunication" in refused.json()["message"]
    assert "each request is a call of its own" in refused.json()["message"]


def test_a_handler_that_is_no_coroutine_is_refused_when_it_loads(server: RunningServer, tmp_path: Path) -> None:
    source = "def handle(data, context):\n    return data and ['no']\n"
    refused = server.register(model_folder(tmp_path, "sync", source, "asyncCommunication: true\n"))
    assert refused.status_code == 500
    assert "handle must be a coroutine" in server.log()
    server.unregister("sync")


# A handler as they are written for vLLM


@pytest.mark.torch
def test_an_llm_handler_routes_by_the_path_below_the_models_name(llm: str) -> None:
    assert requests.get(f"{llm}/v1/models", timeout=180).json() == {"data": [{"id": "tiny"}]}
    completed = requests.post(f"{llm}/v1/completions", json={"prompt": "a", "max_tokens": 3}, timeout=180)
    assert completed.json() == {"text": "a0 a1 a2 "}
    assert requests.post(f"{llm}/v1/embeddings", json={}, timeout=180).status_code == 404


@pytest.mark.torch
def test_an_llm_handler_streams_server_sent_events(llm: str) -> None:
    def complete(prompt: str) -> list[str]:
        order = {"prompt": prompt, "max_tokens": 20, "stream": True}
        with requests.post(f"{llm}/v1/completions", json=order, stream=True, timeout=180) as response:
            assert response.headers["content-type"] == "text/event-stream"
            return [line.decode().removeprefix("data: ") for line in response.iter_lines() if line]

    prompts = [f"p{number}-" for number in range(8)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        for prompt, lines in zip(prompts, pool.map(complete, prompts), strict=True):
            *tokens, last = lines
            assert last == "[DONE]"
            assert [json.loads(token)["text"] for token in tokens] == [f"{prompt}{number} " for number in range(20)]


def test_the_worker_has_one_thread_for_all_requests(server: RunningServer) -> None:
    pid = server.predict("async", "told").json()["pid"]
    assert pid != os.getpid()
    assert psutil.Process(pid).num_threads() == 2  # the event loop's, and the heartbeat's
