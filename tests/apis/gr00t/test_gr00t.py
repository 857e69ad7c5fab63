"""GR00T's robots: what their clients send over ZeroMQ is answered as by GR00T's own server, except ``kill``."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tests.ports import free_ports

MODALITIES = {"video": {"delta_indices": [0], "modality_keys": ["front"]}}
CONFIG = """
sequenceBatching: true
sequenceMaxIdleMSec: 60000
maxNumSequence: 200
batchSize: 8
maxBatchDelay: 20
gr00t:
  video: {delta_indices: [0], modality_keys: [front]}
"""
#: Counts the observations of an episode, and answers with what it got.
POLICY = """
import numpy as np


def handle(data, context):
    if data is None:
        return None
    return [act(row, idx, context, len(data)) for idx, row in enumerate(data)]


def act(row, idx, context, rows):
    observation = row["body"]
    number = context.state.get(idx, 0) + 1
    context.state[idx] = number
    match observation.get("asked"):
        case "failure":
            raise ValueError("as asked")
        case "objects":
            return {"action": np.array([object()])}
        case "list":
            return [1]
        case "info":
            return {"action": np.zeros(2, np.float32)}, {"options": row.get("options")}
    return {"number": np.float32(number), "rows": rows, "action.arm": np.full((16, 7), number), "got": observation}
"""


def encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}
    return value


def decoded(value: Any) -> Any:
    if "__ndarray_class__" in value:
        return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
    return value


class PolicyClient:
    """Speaks as GR00T's client of that name: one socket, and one request at a time."""

    def __init__(self, port: int, api_token: str | None = None, name: bytes | None = None) -> None:
        self.socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.setsockopt(zmq.RCVTIMEO, 60_000)
        self.socket.setsockopt(zmq.LINGER, 0)
        if name is not None:
            self.socket.setsockopt(zmq.IDENTITY, name)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.api_token = api_token

    def call(self, endpoint: str, data: Any = None) -> Any:
        request: dict[str, Any] = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self.api_token:
            request["api_token"] = self.api_token
        return self.send(msgpack.packb(request, default=encoded))

    def send(self, message: bytes) -> Any:
        self.socket.send(message)
        answer = msgpack.unpackb(self.socket.recv(), object_hook=decoded)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"Server error: {answer['error']}")
        return answer

    def get_action(self, observation: Any, options: Any = None) -> Any:
        return self.call("get_action", {"observation": observation, "options": options})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, int]]:
    folder, (port,) = tmp_path_factory.mktemp("models"), free_ports(1)
    models = {"policy": model_folder(folder, "policy", POLICY, CONFIG), "other": model_folder(folder, "other", POLICY)}
    with RunningServer(models, {"gr00t_port": port, "max_request_size": 1_000_000}) as running:
        running.wait_ready()
        yield running, port


@pytest.fixture
def robot(served: Any) -> Iterator[PolicyClient]:
    client = PolicyClient(served[1])
    yield client
    client.socket.close()


def test_each_robot_is_an_episode_until_it_is_reset(served: Any) -> None:
    robots = [PolicyClient(served[1]) for _ in range(4)]
    image = np.arange(24, dtype=np.uint8).reshape(1, 1, 2, 4, 3)
    observation = {"video.front": image, "state.arm": np.asfortranarray(np.eye(2, 3)), "annotation": ["reach"]}
    with ThreadPoolExecutor(len(robots)) as threads:
        for number in (1, 2, 3):
            answers = list(threads.map(lambda robot: robot.get_action(observation), robots))
            for action, info in answers:
                assert info == {}
                assert action["number"] == number
                assert action["action.arm"].shape == (16, 7)
                np.testing.assert_array_equal(action["got"]["video.front"], image)
                np.testing.assert_array_equal(action["got"]["state.arm"], np.eye(2, 3))
                assert action["got"]["annotation"] == ["reach"]
    assert robots[0].call("reset", {"options": None}) == {}
    assert [robot.get_action({})[0]["number"] for robot in robots[:2]] == [1, 4]
    for robot in robots:
        robot.socket.close()


def test_robots_share_a_batch(served: Any) -> None:
    robots = [PolicyClient(served[1]) for _ in range(4)]
    with ThreadPoolExecutor(len(robots)) as threads:

        def rows() -> int:
            return max(threads.map(lambda robot: robot.get_action({})[0]["rows"], robots))

        eventually(lambda: rows() > 1, "observations of several robots are in one batch")
    for robot in robots:
        robot.socket.close()


def test_the_other_endpoints(robot: PolicyClient) -> None:
    assert robot.call("ping") == {"status": "ok", "message": "Server is running"}
    modality = {"__ModalityConfig_class__": True, "as_json": MODALITIES["video"]}
    assert robot.call("get_modality_config") == {"video": modality}
    with pytest.raises(RuntimeError, match="its operator can"):
        robot.call("kill")
    with pytest.raises(RuntimeError, match="Unknown endpoint: 'fly'"):
        robot.call("fly")
    assert robot.call("ping")


def test_a_client_of_n1_5_sends_the_observation_alone_and_gets_the_actions_alone(robot: PolicyClient) -> None:
    answer = robot.call("get_action", {"video.front": np.zeros((2, 2), np.uint8)})
    assert answer["number"] == 1
    assert answer["got"]["video.front"].shape == (2, 2)


def test_a_policy_can_return_info_and_read_options(robot: PolicyClient) -> None:
    action, info = robot.get_action({"asked": "info"}, {"seed": 3})
    assert action["action"].tolist() == [0, 0]
    assert info == {"options": {"seed": 3}}


def npy(file: Any) -> dict[str, Any]:
    return {"__ndarray_class__": True, "as_npy": file}


def header(text: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def pickled_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([object], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("observation", "told"),
    [
        ({"x": npy(pickled_array())}, "'|O' are not taken"),
        ({"x": npy(b"PK\x03\x04")}, "No observation of GR00T"),
        ({"x": npy(b"")}, "No observation of GR00T"),
        ({"x": npy("x")}, "has the bytes of a file"),
        ({"x": npy(encoded(np.zeros(2))["as_npy"][:-1])}, "needs more than 15 bytes"),
        ({"x": npy(encoded(np.zeros(2))["as_npy"] + b"x")}, "has not 17 bytes"),
        ({"x": encoded(np.zeros(2, np.complex64))}, "are not taken"),
        (
            {"x": npy(header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**15,), }\n"))},
            "No observation of GR00T",
        ),
        (
            {"x": npy(header("{'descr': '<f8', 'fortran_order': True, 'shape': (1000000000000,), }\n"))},
            "needs more than 0 bytes",
        ),
        ({"x": npy(header("{'descr': '<f8'}"))}, "No observation of GR00T"),
        (
            {"x": npy(header("{'descr': '<V8', 'fortran_order': False, 'shape': (0,), }\n"))},
            "'<V8' are not taken",
        ),
        ({"x": npy(header("(" * 9000))}, "No observation of GR00T"),
        ([1], "An observation is a map"),
        ({"asked": "failure"}, "Prediction failed"),
        ({"asked": "objects"}, "cannot be written"),
        ({"asked": "list"}, "answers with a dict"),
    ],
)
def test_what_is_no_observation_or_answer_is_refused_and_the_episode_goes_on(
    robot: PolicyClient, observation: Any, told: str
) -> None:
    with pytest.raises(RuntimeError, match=told):
        robot.get_action(observation)
    assert robot.get_action({})[0]["rows"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"", "no request of GR00T"),
        (b"PK\x03\x04torch", "reads no pickles"),
        (b"\x80\x04K\x01.", "reads no pickles"),
        (b"\xdf\xff\xff\xff\xff", "no request of GR00T"),
        (msgpack.packb([1]), "no request of GR00T"),
        (msgpack.packb({"endpoint": 5}), "no request of GR00T"),
        (msgpack.packb({"endpoint": "get_action"}), "An observation is a map"),
        (b"\x81\xa4data" + b"\x91" * 100_000, "no request of GR00T"),
    ],
)
def test_what_is_no_request_is_refused(robot: PolicyClient, message: bytes, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        robot.send(message)
    assert robot.call("ping")


def test_a_message_above_the_limit_ends_its_connection_only(served: Any, robot: PolicyClient) -> None:
    large = PolicyClient(served[1])
    large.socket.send(b"x" * 1_000_001)
    large.socket.setsockopt(zmq.RCVTIMEO, 300)
    with pytest.raises(zmq.Again):
        large.socket.recv()
    large.socket.close()
    assert robot.call("ping")


def test_what_needs_no_answer_is_skipped(served: Any, robot: PolicyClient) -> None:
    other = zmq.Context.instance().socket(zmq.DEALER)
    other.setsockopt(zmq.LINGER, 0)
    other.connect(f"tcp://127.0.0.1:{served[1]}")
    for frames in ([b"x"], [b"x", b"y"], [b"", b"x", b"y"]):
        other.send_multipart(frames)
    other.send_multipart([b"", msgpack.packb({"endpoint": "ping"})])
    assert msgpack.unpackb(other.recv_multipart()[1])["status"] == "ok"
    other.close()
    assert robot.call("ping")


def test_the_token_is_a_key_of_the_server(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "keys:\n  - {name: robot, key: the-key-of-a-robot-arm, models: [policy]}\n"
        "  - {name: another, key: the-key-of-another-robot, models: [none]}\n"
        "  - {name: second, key: the-key-of-a-second-arm, models: [policy]}\n"
    )
    (port,) = free_ports(1)
    models = {"policy": model_folder(tmp_path, "policy", POLICY, CONFIG)}
    with RunningServer(models, {"gr00t_port": port, "keys_file": keys}, flags=("--enable-model-api",)) as running:
        eventually(lambda: "Model server started." in running.log(), "it has started")
        assert PolicyClient(port, "the-key-of-a-robot-arm").get_action({})[0]["number"] == 1
        for token, told in ((None, "[Tt]oken|key"), ("wrong", "key"), ("the-key-of-another-robot", "policy")):
            for call in ("get_action", "ping")[: 1 if token and "another" in token else 2]:
                with pytest.raises(RuntimeError, match=told):
                    PolicyClient(port, token).call(call, {"observation": {}})
        # Whatever a client with another key has called itself before.
        for token in ("the-key-of-a-robot-arm", "the-key-of-a-second-arm"):
            assert eventually(lambda token=token: first_number(port, token, b"arm"), "the name is free") == 1


def first_number(port: int, token: str, name: bytes) -> int | None:
    """Return what a client of that name gets for its first observation; None while another one is still called so."""
    client = PolicyClient(port, token, name)
    client.socket.setsockopt(zmq.RCVTIMEO, 2_000)
    try:
        return int(client.get_action({})[0]["number"])
    except zmq.Again:
        return None
    finally:
        client.socket.close()
