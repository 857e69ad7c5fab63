"""A server that was given its keys, as in a container: over HTTP, gRPC and WebSockets, with a file that is replaced."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.e2e.serve_command import ServeCommand, run_curl
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from torchserve_py.apis.grpc.protos import open_inference_pb2 as messages
from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

ECHO = """
import os


def handle(data, context):
    if data is None:
        return None
    seen = [name for name in os.environ if name.endswith("_KEYS")]
    return [f"{row.get('body') or row.get('data')!r} {seen}" for row in data]
"""
STATEFUL = """
from ts import serve


@serve
def memory(text: str, state: dict) -> str:
    state["n"] = state.get("n", 0) + 1
    return f"{text} {state['n']}"
"""


TICKS = """
import time
from collections.abc import Iterator

from ts import serve


@serve
def ticks(text: str) -> Iterator[str]:
    while True:
        time.sleep(0.1)
        yield "tick"
"""
#: How long what a key has opened may go on once the key is removed (seconds); the documents say one.
ENDS_WITHIN = 5.0


def replace(file: Path, *keys: dict[str, object]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"keys": keys}))
    new.replace(file)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "memory.py").write_text(STATEFUL)
    (tmp_path / "other.py").write_text(STATEFUL.replace("memory", "other"))
    (tmp_path / "ticks.py").write_text(TICKS)
    yield tmp_path


def live_session(command: ServeCommand, is_open: Event) -> float:
    """Hold a live session with the key ``app``; return when it ends."""
    url = command.base.replace("http://", "ws://")
    with connect(f"{url}/sequences/memory", subprotocols=["bearer.app"]) as socket:  # type: ignore[list-item]
        socket.recv(DEADLINE)
        is_open.set()
        try:
            socket.recv(DEADLINE)
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            assert closed.rcvd.code == 1008
    return time.monotonic()


def streamed_answer(command: ServeCommand, is_open: Event) -> float:
    """Read an answer that has no end with the key ``all``; return when it ends."""
    headers = {"Authorization": "Bearer all", "content-type": "text/plain"}
    url = f"{command.base}/predictions/ticks"
    with requests.post(url, "x", headers=headers, stream=True, timeout=DEADLINE) as answer:
        assert answer.status_code == 200
        with contextlib.suppress(requests.RequestException):  # it is cut off
            for _ in answer.iter_content(1):
                is_open.set()
    return time.monotonic()


def two_way_call(command: ServeCommand, is_open: Event) -> float:
    """Hold a two-way stream of gRPC with the key ``app``; return when it ends."""
    address, over = command.printed().partition("(gRPC ")[2].partition(")")[0], Event()

    def steps() -> Iterator[PredictionsRequest]:
        yield PredictionsRequest(model_name="memory", sequence_id="s", input={"text": b"hi"})
        over.wait(DEADLINE)

    with grpc.insecure_channel(address) as channel:
        metadata = (("authorization", "Bearer app"),)
        call = InferenceAPIsServiceStub(channel).StreamPredictions2(steps(), metadata=metadata, timeout=DEADLINE)
        assert next(call).prediction
        is_open.set()
        with pytest.raises(grpc.RpcError) as raised:
            next(call)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        over.set()
    return time.monotonic()


def all_end_with_their_keys(command: ServeCommand, remove_keys: Callable[[], None]) -> None:
    """Check that what is open ends soon after its key is removed, and print after how long."""
    opened = [(each, Event()) for each in (live_session, streamed_answer, two_way_call)]
    with ThreadPoolExecutor(len(opened)) as pool:
        ends = [pool.submit(each, command, is_open) for each, is_open in opened]
        for end, (_, is_open) in zip(ends, opened, strict=True):
            eventually(lambda is_open=is_open, end=end: is_open.is_set() or end.done(), "it is open")  # type: ignore[misc]
        began = time.monotonic()
        remove_keys()
        for end, (each, _) in zip(ends, opened, strict=True):
            took = end.result(DEADLINE) - began
            print(f"{each.__name__} has ended {took:.2f} s after its key was removed")
            assert 0 < took < ENDS_WITHIN, each.__name__


def test_keys_by_model_over_every_protocol_and_a_replaced_file(folder: Path) -> None:
    file = folder / "keys.json"
    replace(file, {"name": "app", "key": "app", "models": ["memory"]}, {"key": "all"})
    variables = {"TS_KEYS_FILE": str(file)}
    with ServeCommand(folder, "memory.py", "other.py", "ticks.py", variables=variables) as command:
        command.wait_until_serving()
        assert not (folder / "key_file.json").exists()

        def status(model: str, key: str) -> int:
            sent = {"Authorization": f"Bearer {key}"} if key else {}
            url, headers = f"{command.base}/predictions/{model}", {**sent, "content-type": "text/plain"}
            return requests.post(url, "hello", headers=headers, timeout=DEADLINE).status_code

        assert [status("memory", key) for key in ("", "wrong", "app", "all")] == [401, 401, 200, 200]
        assert [status("other", key) for key in ("", "wrong", "app", "all")] == [401, 401, 403, 200]

        for curl in (each for each in command.curls() if "/ticks" not in each):  # that answer has no end
            assert 'Authorization: Bearer $KEY"' in curl
            assert run_curl(f"export KEY=all; {curl}").startswith("hello")

        url = command.base.replace("http://", "ws://")
        for name, expected in (("memory", 101), ("other", 403)):
            try:
                with connect(f"{url}/sequences/{name}", subprotocols=["bearer.app"]) as socket:  # type: ignore[list-item]
                    assert socket.response is not None
                    assert socket.response.status_code == expected
            except InvalidStatus as error:
                assert error.response.status_code == expected

        address = command.printed().partition("(gRPC ")[2].partition(")")[0]
        with grpc.insecure_channel(address) as channel:
            statistics = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelStatistics",
                request_serializer=messages.ModelStatisticsRequest.SerializeToString,
                response_deserializer=messages.ModelStatisticsResponse.FromString,
            )(messages.ModelStatisticsRequest(), metadata=(("authorization", "Bearer app"),), timeout=DEADLINE)
            assert [each.name for each in statistics.model_stats] == ["memory"]
            stub = InferenceAPIsServiceStub(channel)
            for model, key, code in (
                ("memory", "app", None),
                ("other", "app", grpc.StatusCode.PERMISSION_DENIED),
                ("other", "wrong", grpc.StatusCode.UNAUTHENTICATED),
            ):
                request = PredictionsRequest(model_name=model, input={"text": b"hi"})
                try:
                    stub.Predictions(request, metadata=(("authorization", f"Bearer {key}"),), timeout=DEADLINE)
                    assert code is None
                except grpc.RpcError as error:
                    assert error.code() is code

        all_end_with_their_keys(command, lambda: replace(file, {"key": "new"}))
        eventually(lambda: status("memory", "new") == 200, "the replaced file counts")
        assert status("memory", "app") == 401


def test_keys_of_the_environment_are_hidden_from_models(tmp_path: Path) -> None:
    model = model_folder(tmp_path, "echo", ECHO)
    variables = {"TS_INFERENCE_KEYS": "web:sesame", "TS_MANAGEMENT_KEYS": "boss"}
    with RunningServer({"echo": model}, environment=variables, flags=()) as server:
        server.wait_ready()
        answer = requests.get(
            f"{server.inference}/predictions/echo", headers={"Authorization": "Bearer sesame"}, timeout=DEADLINE
        )
        assert (answer.status_code, answer.text) == (200, "None []")
        models = requests.get(f"{server.management}/models", headers={"Authorization": "Bearer boss"}, timeout=DEADLINE)
        assert models.status_code == 200
        refused = requests.get(f"{server.inference}/predictions/echo", timeout=DEADLINE)
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="torchserve-py"')


def test_keys_and_no_token_authorization_contradict_each_other(tmp_path: Path) -> None:
    server = RunningServer({}, environment={"TS_INFERENCE_KEYS": "sesame"})
    where = {"cwd": server.directory, "env": server.environment}
    done = subprocess.run(
        server.command,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        **where,  # type: ignore[call-overload]
    )
    assert done.returncode == 1
    assert "environment variable TS_INFERENCE_KEYS gives keys, but flag --disable-token-auth" in done.stdout
    assert "sesame" not in done.stdout


def test_a_given_key_is_not_shown_on_a_terminal_either(folder: Path) -> None:
    variables = {"TS_INFERENCE_KEYS": "web:sesame"}
    with ServeCommand(folder, "memory.py", variables=variables, terminal=True) as command:
        command.wait_until_serving()
        (curl,) = command.curls()
        assert run_curl(f"export KEY=sesame; {curl}") == "hello 1"
        assert "sesame" not in command.printed()
