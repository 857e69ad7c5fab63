"""Policies for robots, with the unmodified client of openpi: episodes, their states, errors, what is refused."""

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import requests
from openpi_client import websocket_client_policy as policy_client
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually, model_folder
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

CONFIG = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 10\n"
#: Answers with what it was asked, and with what msgpack cannot write or what is no dict, when asked for that.
ECHO = """
import numpy as np


def handle(data, context):
    if data is None:
        return None
    return [answer(row["body"]) | {"rows": len(data)} for row in data]


def answer(observation):
    match observation.get("asked"):
        case "objects":
            return {"actions": np.array([object()])}
        case "complex":
            return {"actions": np.zeros(2, np.complex64)}
        case "failure":
            raise ValueError("as asked")
    return {"got": observation, "types": {name: str(type(value)) for name, value in observation.items()}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "reach": HANDLERS / "reach",
        "kept": kept_reach(folder),
        "echo": model_folder(folder, "echo", ECHO, CONFIG),
        "pair": model_folder(folder, "pair", ECHO, f"{CONFIG}batchSize: 2\nmaxBatchDelay: 1000\n"),
    }
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def kept_reach(folder: Path) -> Path:
    """The same policy, with a store beneath its episodes."""
    kept = shutil.copytree(HANDLERS / "reach", folder / "kept")
    config = (kept / "model-config.yaml").read_text().partition("openpi:")[0]
    (kept / "model-config.yaml").write_text(f"{config}handler: {{cache: {{store: file}}}}\n")
    return kept


def client_of(server: RunningServer, path: str = "", **more: Any) -> Any:
    """The client, made as its users make it: without a path by host and port, with one by an address."""
    host, _, port = server.inference.removeprefix("http://").partition(":")
    if not path:
        return policy_client.WebsocketClientPolicy(host, int(port), **more)
    return policy_client.WebsocketClientPolicy(f"ws://{host}:{port}{path}", **more)


def alone(target: float, answers: int) -> list[Any]:
    """What the policy does in an episode of its own."""
    sys.path.insert(0, str(HANDLERS / "reach"))
    try:
        import reach_handler
    finally:
        sys.path.remove(str(HANDLERS / "reach"))
    state, velocity = np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32)
    actions = []
    for _ in range(answers):
        action, velocity = reach_handler.move(state, np.full((1, 3), target, np.float32), velocity)
        actions.append(action[0])
        state = action[:, -1]
    return actions


def test_each_connection_is_an_episode_with_a_state_of_its_own(server: RunningServer) -> None:
    clients = [client_of(server) for _ in range(8)]
    assert clients[0].get_server_metadata() == {"action_horizon": 10}
    states = [np.zeros(3, np.float32) for _ in clients]
    actions: list[list[Any]] = [[] for _ in clients]

    def step(number: int) -> None:
        observation = {"state": states[number], "target": np.full(3, number + 1.0), "prompt": "reach for it"}
        answer = clients[number].infer(observation)
        assert answer["server_timing"].keys() == {"infer_ms"} | ({"prev_total_ms"} if actions[number] else set())
        actions[number].append(answer["actions"])
        states[number] = answer["actions"][-1]

    with ThreadPoolExecutor(len(clients)) as threads:
        for _ in range(4):
            list(threads.map(step, range(len(clients))))
    for number, done in enumerate(actions):
        assert done[0].shape == (10, 3)
        assert done[0].dtype == np.float32
        np.testing.assert_allclose(done, alone(number + 1.0, 4), rtol=1e-5)


@pytest.mark.parametrize("path", ["/openpi/echo", "/openpi/echo/1.0", "/?model=echo"])
def test_a_model_is_named_by_path_or_query(server: RunningServer, path: str) -> None:
    client = client_of(server, path)
    assert client.get_server_metadata() == {}
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sent = {
        "image": image,
        "lists": [image[0], 1.5, None],
        "one": np.float32(0.5),
        "raw": b"\0",
        "names": np.array(["a"]),
    }
    answer = client.infer(sent)
    np.testing.assert_array_equal(answer["got"]["image"], image)
    np.testing.assert_array_equal(answer["got"]["lists"][0], image[0])
    assert answer["got"]["lists"][1:] == [1.5, None]
    assert answer["got"]["names"].tolist() == ["a"]
    assert answer["got"]["one"] == 0.5
    assert answer["types"]["one"] == "<class 'numpy.float32'>"
    assert answer["got"]["raw"] == b"\0"


@pytest.mark.parametrize("model", ["reach", "kept"])
def test_an_episode_outlives_its_worker_if_it_is_stored_and_else_says_that_it_is_lost(
    server: RunningServer, model: str
) -> None:
    client = client_of(server, f"/openpi/{model}")
    observation = {"state": np.zeros(3, np.float32), "target": np.ones(3, np.float32)}
    first = client.infer(observation)["actions"]
    os.kill(server.describe(model)[0]["workers"][0]["pid"], signal.SIGKILL)
    if model == "kept":
        np.testing.assert_allclose(
            client.infer(observation | {"state": first[-1]})["actions"], alone(1.0, 2)[1], rtol=1e-5
        )
        return
    with pytest.raises(ConnectionClosed) as closed:
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                client.infer(observation)
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4410, "sequence_lost")


def test_episodes_share_a_batch(server: RunningServer) -> None:
    clients = [client_of(server, "/openpi/pair") for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:

        def rows() -> list[int]:
            return [answer["rows"] for answer in threads.map(lambda client: client.infer({"x": 1}), clients)]

        eventually(lambda: rows() == [2, 2], "both observations are in one batch")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("objects", "no form for arrays of object"),
        ("complex", "no form for arrays of complex64"),
        ("failure", "Prediction failed"),
    ],
)
def test_an_error_is_a_text_and_the_episode_goes_on(server: RunningServer, asked: str, told: str) -> None:
    client = client_of(server, "/openpi/echo")
    with pytest.raises(RuntimeError, match=told):
        client.infer({"asked": asked})
    assert client.infer({"x": 1})["got"] == {"x": 1}


def test_an_observation_that_the_policy_refuses_is_told_to_its_own_client(server: RunningServer) -> None:
    client = client_of(server)
    with pytest.raises(RuntimeError, match="An observation has 'target', an array of one finite number for each joint"):
        client.infer({"state": np.zeros(3)})
    np.testing.assert_allclose(client.infer({"state": np.zeros(3), "target": np.ones(3)})["actions"], alone(1, 1)[0])


def an_array(**changes: Any) -> dict[bytes, Any]:
    good = {"__ndarray__": True, "data": b"\0" * 8, "dtype": "<f4", "shape": [2]}
    return {name.encode(): value for name, value in (good | changes).items()}


@pytest.mark.parametrize(
    "observation",
    [
        an_array(dtype="|O", data=b"\0" * 16),
        an_array(dtype="|V4"),
        an_array(dtype="<c8", shape=[1]),
        an_array(dtype="f4,f4", shape=[1]),
        an_array(dtype=[["a", "<f4"]]),
        an_array(dtype="<U0"),
        an_array(shape=[3]),
        an_array(shape=[-1, -2]),
        an_array(shape=[2**40, 2**40]),
        an_array(shape="2"),
        an_array(data="text"),
        {b"__npgeneric__": True, b"dtype": "|O", b"data": b"cos\nsystem\n"},
        {b"__npgeneric__": True, b"dtype": "<i4", b"data": "x"},
        {b"__npgeneric__": True, b"dtype": "|i1", b"data": 1000},
    ],
)
def test_arrays_that_openpi_does_not_have_are_refused(server: RunningServer, observation: Any) -> None:
    with connect(f"{server.inference.replace('http', 'ws')}/openpi/echo") as socket:
        assert msgpack.unpackb(socket.recv()) == {}
        socket.send(msgpack.packb({"image": observation}))
        assert str(socket.recv(DEADLINE)).startswith("No observation of openpi: ")
        socket.send(msgpack.packb({"x": 1}))
        assert msgpack.unpackb(socket.recv(DEADLINE))["got"] == {"x": 1}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "incomplete input"),
        (b"\xc1", "the bytes are no msgpack"),
        (msgpack.packb([1, 2]), "a value of type list"),
        (msgpack.packb({"a": 1}) + b"\0", "extra data"),
        (b"\x91" * 5000, "nested too deeply"),
        (b"\xdf\xff\xff\xff\xff", "exceeds"),
    ],
)
def test_what_is_no_observation_is_refused(server: RunningServer, message: bytes, reason: str) -> None:
    with connect(f"{server.inference.replace('http', 'ws')}/") as socket:
        socket.recv()
        socket.send(message)
        told = str(socket.recv(DEADLINE))
        assert "bservation" in told
        assert reason in told
        socket.send("a text")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(DEADLINE)
        assert closed.value.rcvd.code == 1003


def test_the_path_without_a_handshake_and_the_probe(server: RunningServer) -> None:
    assert requests.get(f"{server.inference}/", timeout=DEADLINE).json() == {"status": "alive"}
    healthy = requests.get(f"{server.inference}/healthz", timeout=DEADLINE)
    assert (healthy.status_code, healthy.text) == (200, "OK\n")
    assert requests.get(f"{server.inference}/openpi/reach", timeout=DEADLINE).status_code == 400
    assert requests.get(f"{server.inference}/openpi/nobody", timeout=DEADLINE).status_code == 404


def test_the_key_is_sent_as_openpi_sends_it_and_a_server_that_stops_says_so() -> None:
    with RunningServer({"reach": HANDLERS / "reach"}, {"drain_timeout": 1}, flags=()) as server:
        keys = json.loads((server.directory / "key_file.json").read_text())
        with pytest.raises(Exception, match="HTTP 400"):
            client_of(server, api_key="wrong")
        client = client_of(server, api_key=keys["inference"]["key"])
        assert client.get_server_metadata() == {"action_horizon": 10}
        server.terminate()
        with pytest.raises(ConnectionClosed) as closed:
            client.infer({})
        assert closed.value.rcvd.code == 1012
