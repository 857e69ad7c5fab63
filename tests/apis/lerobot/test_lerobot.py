"""LeRobot's robots: chunks of actions, their deadlines, what is refused, and robots whose server was restarted."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest
from tests.apis.lerobot import stand_in
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tests.ports import free_ports

from torchserve_py.apis.grpc.protos import lerobot_pb2, lerobot_pb2_grpc
from torchserve_py.client import lerobot

CONFIG = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 100\n"
#: Answers with chunks that name the timestep; keeps the last chunk, and says what it was told.
POLICY = """
import os
import time

import numpy as np


def handle(data, context):
    if data is None:
        return None
    return [act(row["body"], idx, context) for idx, row in enumerate(data)]


def act(observation, idx, context):
    told, before = observation["lerobot"], context.state.get(idx)
    print("told", told["timestep"], told["executed"], sorted(told["features"]), "deadline", flush=True)
    while "until" in observation and not os.path.exists(observation["until"]):
        time.sleep(0.01)
    if observation.get("asked") == "flat":
        return {"actions": np.zeros(3)}
    if observation.get("asked") == "failure":
        raise ValueError("as asked")
    chunk = np.full((told["actions_per_chunk"], 2), told["timestep"], np.float32)
    chunk[:, 1] = -1 if before is None else before[told["executed"], 0]
    if "image" in observation:
        chunk[:, 1] = observation["image"].sum()
    context.state[idx] = chunk
    return {"actions": chunk}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    folder, (port,) = tmp_path_factory.mktemp("models"), free_ports(1)
    models = {
        "policy": model_folder(folder, "policy", POLICY, CONFIG),
        "stateless": model_folder(folder, "stateless", POLICY),
    }
    with RunningServer(models, {"grpc_inference_port": port, "max_request_size": 2_000_000}) as running:
        running.wait_ready()
        yield running, f"127.0.0.1:{port}"


@pytest.fixture
def client_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = stand_in.copy()
    monkeypatch.setattr(lerobot, "ROBOT_CLIENT", module.__name__)
    assert lerobot.install() is lerobot.install() is module
    return module


def robot_of(module: Any, address: str, model: str = "policy", **more: Any) -> Any:
    robot = module.RobotClient(module.Config(address, model, **more))
    assert robot.start(), robot.error
    return robot


def test_a_robot_gets_chunks_and_its_policy_the_chunk_before(served: Any, client_module: Any) -> None:
    robots = [robot_of(client_module, served[1]) for _ in range(2)]
    for robot in robots:
        robot.observe(0, {"a.pos": 0.5, "task": "reach"}, must_go=True)
        actions = robot.act()
        assert [each.timestep for each in actions] == list(range(10))
        assert [each.timestamp for each in actions[:2]] == [1e9, pytest.approx(1e9 + 1 / 30, abs=1e-3)]
        assert isinstance(actions[0], client_module.TimedAction)
        assert actions[0].action.tolist() == [0, -1]
        robot.observe(6, {"a.pos": np.float32(0.5), "names": np.array(["x"])})
        assert robot.act()[0].action.tolist() == [6, 0], "the chunk before is the state"
        robot.observe(8, {"a.pos": 0.5, "image": np.ones((480, 640, 3), np.uint8)})
        assert robot.act()[0].action.tolist() == [8, 480 * 640 * 3], "an observation comes in pieces"
        robot.stop()
    told = [line.partition("told ")[2] for line in served[0].log().splitlines() if "told 6 6" in line]
    assert told == ["6 6 ['observation.state'] deadline"] * 2


def test_a_lost_state_is_told_once_and_another_episode_begins(served: Any, client_module: Any) -> None:
    robot = robot_of(client_module, served[1])
    robot.observe(0, {})
    robot.act()
    os.kill(served[0].describe("policy")[0]["workers"][0]["pid"], signal.SIGKILL)
    robot.observe(7, {})
    with pytest.raises(grpc.RpcError) as lost:
        robot.act()
    assert dict(lost.value.trailing_metadata())["ts-error-cause"] in ("sequence_lost", "worker_died")
    if dict(lost.value.trailing_metadata())["ts-error-cause"] == "worker_died":
        robot.observe(7, {})
        with pytest.raises(grpc.RpcError, match="lost"):
            robot.act()
    robot.observe(8, {})
    assert robot.act()[0].action.tolist() == [8, -1], "there is no chunk before"
    assert "told 8 0 " in served[0].log()
    robot.stop()


def test_only_the_latest_observation_counts_and_none_twice(served: Any, client_module: Any) -> None:
    robot = robot_of(client_module, served[1])
    for timestep in (0, 1, 2):
        robot.observe(timestep, {})
    assert robot.act()[0].timestep == 2
    robot.observe(2, {})
    began = time.monotonic()
    assert robot.act() == [], "there is a chunk for this timestep"
    assert time.monotonic() - began > 1.9
    robot.observe(2, {}, must_go=True)
    assert robot.act()[0].timestep == 2
    threading.Timer(0.2, robot.observe, (3, {})).start()
    assert robot.act()[0].timestep == 3, "it waits for an observation"
    robot.stop()


def test_a_policy_that_was_busy_gets_the_observation_that_is_the_latest_then(
    served: Any, client_module: Any, tmp_path: Path
) -> None:
    first, second = [robot_of(client_module, served[1]) for _ in range(2)]
    second.observe(0, {})
    second.act()
    first.observe(0, {"until": str(tmp_path / "over")})
    runs = served[0].log().count("told 0 0")
    with ThreadPoolExecutor(2) as pool:
        acting = [pool.submit(first.act)]
        eventually(lambda: served[0].log().count("told 0 0") > runs, "it runs")
        second.observe(1, {"a.pos": 0.5})
        acting.append(pool.submit(second.act))
        eventually(lambda: served[0].pending("policy") == 1, "the other one waits")
        for timestep in (2, 5, 3):
            second.observe(timestep, {"image": np.full(timestep, 1)})
        (tmp_path / "over").touch()
        chunks = [each.result() for each in acting]
    assert [(chunk[0].timestep, chunk[0].action.tolist()) for chunk in chunks] == [(0, [0, -1]), (5, [5, 5])]
    second.observe(7, {})
    assert second.act()[0].action.tolist() == [7, 5]
    told = [line.partition("told ")[2][:3] for line in served[0].log().splitlines() if "told " in line]
    assert told[-2:] == ["5 5", "7 2"], "of the actions of the chunk before so many were executed"
    for each in (first, second):
        each.stop()


def test_requests_of_one_robot_at_once_get_the_chunks_of_their_own_observations(
    served: Any, client_module: Any, tmp_path: Path
) -> None:
    robot, other = [robot_of(client_module, served[1]) for _ in range(2)]
    runs = served[0].log().count("told 0 0")
    robot.observe(0, {"until": str(tmp_path / "over")})
    with ThreadPoolExecutor(2) as pool:
        acting = [pool.submit(robot.act)]
        eventually(lambda: served[0].log().count("told 0 0") > runs, "it runs")
        acting.append(pool.submit(robot.act))
        robot.observe(3, {}, must_go=True)
        other.observe(0, {})
        (tmp_path / "over").touch()
        assert other.act()[0].timestep == 0
        chunks = [each.result() for each in acting]
    assert [(chunk[0].timestep, chunk[0].action.tolist()) for chunk in chunks] == [(0, [0, -1]), (3, [3, 0])]
    for each in (robot, other):
        each.stop()


def test_an_observation_that_is_no_map_is_refused_and_the_one_that_waits_stays(
    served: Any, client_module: Any, tmp_path: Path
) -> None:
    first, second = [robot_of(client_module, served[1]) for _ in range(2)]
    second.observe(0, {})
    second.act()
    runs = served[0].log().count("told 0 0")
    first.observe(0, {"until": str(tmp_path / "over")})
    acting = [threading.Thread(target=first.act)]
    acting[0].start()
    eventually(lambda: served[0].log().count("told 0 0") > runs, "it runs")
    second.observe(1, {})
    chunks: list[Any] = []
    acting.append(threading.Thread(target=lambda: chunks.append(second.act())))
    acting[1].start()
    eventually(lambda: served[0].pending("policy") == 1, "the other one waits")
    with pytest.raises(grpc.RpcError, match="is no map of msgpack"):
        second.observe(2, [])
    (tmp_path / "over").touch()
    for each in acting:
        each.join()
    assert chunks[0][0].timestep == 1
    for each in (first, second):
        each.stop()


def test_a_chunk_is_due_when_the_robot_has_no_action_left(served: Any, client_module: Any) -> None:
    def missed() -> float:
        labels = {"model_name": "policy", "reason": "late"}
        return served[0].metric("ts_deadline_misses_total", **labels)

    before = missed()
    robot = robot_of(client_module, served[1], environment_dt=0.0005)
    robot.observe(0, {})
    robot.act()
    assert missed() == before, "the first chunk is not due"
    robot.observe(9, {})  # half a millisecond is left
    robot.act()
    eventually(lambda: missed() == before + 1, "the late chunk is counted")
    robot.stop()


def test_a_pickle_is_refused_and_the_message_says_what_to_do(served: Any) -> None:
    robot = stand_in.RobotClient(stand_in.Config(served[1], "policy"))
    assert not robot.start()
    assert robot.error is not None
    assert robot.error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "python -m torchserve_py_client.lerobot" in robot.error.details()
    metadata = (("ts_request_robot", "0123456789abcdef"),)
    robot.stub.Ready(lerobot_pb2.Empty(), metadata=metadata)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(robot.policy_config, protocol)
        with pytest.raises(grpc.RpcError, match="reads no pickles"):
            robot.stub.SendPolicyInstructions(lerobot_pb2.PolicySetup(data=data), metadata=metadata)
        with pytest.raises(grpc.RpcError, match="reads no pickles"):
            robot.stub.SendObservations(stand_in.pieces(data), metadata=metadata)
    with pytest.raises(grpc.RpcError, match="comes after SendPolicyInstructions"):
        robot.stub.GetActions(lerobot_pb2.Empty(), metadata=metadata)
    robot.stop()


SETUP = {"model": "policy", "actions_per_chunk": 10, "features": {}}
SENT = {"timestep": 0, "timestamp": 0.0, "observation": msgpack.packb({})}


@pytest.mark.parametrize(
    ("setup", "sent", "told"),
    [
        (SETUP | {"model": "stateless"}, SENT, "keeps no sequences"),
        (SETUP | {"model": "other"}, SENT, "other"),
        (SETUP | {"actions_per_chunk": 0}, SENT, "PolicySetup.data is not the map"),
        (SETUP | {"features": [1]}, SENT, "features is no map"),
        (SETUP | {"features": {"x": "y" * 70_000}}, SENT, "at most 65536"),
        ([], SENT, "PolicySetup.data is not the map"),
        (SETUP, SENT | {"timestep": -1}, "Observation.data is not the map"),
        (SETUP, SENT | {"observation": msgpack.packb([])}, "is no map of msgpack"),
        (SETUP, SENT | {"observation": b"\x81\xa1a"}, "No observation of openpi"),
        (SETUP, SENT | {"observation": b"\xdf\xff\xff\xff\xff"}, "is no map of msgpack"),
        (SETUP, SENT | {"observation": b""}, "is no map of msgpack"),
        (SETUP, SENT | {"observation": b"x" * 2_000_001}, "max_request_size"),
        (SETUP, SENT | {"observation": msgpack.packb({"asked": "flat"})}, "array \\[actions, joints\\]"),
        (SETUP, SENT | {"observation": msgpack.packb({"asked": "failure"})}, "Prediction failed"),
    ],
)
def test_what_is_wrong_is_refused_and_the_robot_goes_on(served: Any, setup: Any, sent: Any, told: str) -> None:
    with grpc.insecure_channel(served[1]) as channel:
        stub, robot = lerobot_pb2_grpc.AsyncInferenceStub(channel), {"metadata": (("ts_request_robot", "x" * 16),)}

        def run(setup: Any, sent: Any) -> Any:
            stub.SendPolicyInstructions(lerobot_pb2.PolicySetup(data=msgpack.packb(setup)), **robot)
            stub.SendObservations(stand_in.pieces(msgpack.packb(sent)), **robot)
            return msgpack.unpackb(stub.GetActions(lerobot_pb2.Empty(), **robot).data)

        stub.Ready(lerobot_pb2.Empty(), **robot)
        with pytest.raises(grpc.RpcError, match=told):
            run(setup, sent)
        assert run(SETUP, SENT | {"must_go": True})["timestep"] == 0


def test_a_robot_that_the_server_does_not_know_is_introduced_again(served: Any, client_module: Any) -> None:
    robot = client_module.RobotClient(client_module.Config(served[1], "policy"))
    threading.Timer(0.5, lambda: robot.observe(0, {})).start()
    assert robot.act()[0].timestep == 0, "the shim has called Ready and SendPolicyInstructions"
    robot.stop()


@pytest.mark.parametrize("secret", ["short", "x" * 201])
def test_the_name_of_a_robot_is_a_secret(served: Any, secret: str) -> None:
    with (
        grpc.insecure_channel(served[1]) as channel,
        pytest.raises(grpc.RpcError, match="is a secret of 16 to 200 characters"),
    ):
        stub = lerobot_pb2_grpc.AsyncInferenceStub(channel)
        stub.Ready(lerobot_pb2.Empty(), metadata=(("ts_request_robot", secret),))


def test_an_observation_with_an_object_is_not_sent(client_module: Any) -> None:
    with pytest.raises(TypeError, match="of type object"):
        client_module.pickled(client_module.TimedObservation(0.0, 0, {"x": object()}))
    with pytest.raises(TypeError, match="of type ndarray"):
        client_module.pickled(client_module.TimedObservation(0.0, 0, {"x": np.array([object()])}))


def test_the_key_of_a_robot_opens_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n  - {name: arm, key: the-key-of-a-robot-arm, models: [policy]}\n")
    (port,) = free_ports(1)
    models = {name: model_folder(tmp_path, name, POLICY, CONFIG) for name in ("policy", "other")}
    properties = {"grpc_inference_port": port, "keys_file": keys}
    with RunningServer(models, properties, flags=("--enable-model-api",)):

        def started(model: str) -> Any:
            module = stand_in.copy()
            monkeypatch.setattr(lerobot, "ROBOT_CLIENT", module.__name__)
            robot = lerobot.install().RobotClient(module.Config(f"127.0.0.1:{port}", model))
            return robot if robot.start() else robot.error.code()

        assert started("policy") is grpc.StatusCode.UNAUTHENTICATED
        monkeypatch.setenv("TORCHSERVE_KEY", "the-key-of-a-robot-arm")
        assert started("other") is grpc.StatusCode.PERMISSION_DENIED
        robot = started("policy")
        robot.observe(0, {})
        assert robot.act()[0].timestep == 0
        robot.stop()
