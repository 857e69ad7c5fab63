"""A stand-in for the module of LeRobot's robot client: what the shim replaces in it, and calls as LeRobot makes them.

LeRobot itself is too heavy for a test; its names and its use of `pickle` are those of lerobot 0.6.
"""

import pickle  # noqa: F401 - the shim replaces it
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import torch

from torchserve_py.apis.grpc.protos import lerobot_pb2, lerobot_pb2_grpc

PIECE = 100_000


@dataclass
class TimedAction:
    timestamp: float
    timestep: int
    action: torch.Tensor


@dataclass
class TimedObservation:
    timestamp: float
    timestep: int
    observation: dict[str, Any]
    must_go: bool = False


@dataclass
class RemotePolicyConfig:
    policy_type: str
    pretrained_name_or_path: str
    lerobot_features: dict[str, Any]
    actions_per_chunk: int
    device: str = "cpu"
    rename_map: dict[str, str] = field(default_factory=dict)


@dataclass
class Config:
    server_address: str
    model: str
    actions_per_chunk: int = 10
    environment_dt: float = 1 / 30


class RobotClient:
    """Talks to a policy server as LeRobot's client does."""

    def __init__(self, config: Config) -> None:
        features = {"observation.state": {"dtype": "float32", "shape": (2,), "names": ["a.pos", "b.pos"]}}
        self.policy_config = RemotePolicyConfig("act", config.model, features, config.actions_per_chunk)
        self.channel = grpc.insecure_channel(config.server_address)
        self.stub = services_pb2_grpc.AsyncInferenceStub(self.channel)
        self.error: grpc.RpcError | None = None

    def start(self) -> bool:
        try:
            self.stub.Ready(lerobot_pb2.Empty())
            self.stub.SendPolicyInstructions(lerobot_pb2.PolicySetup(data=pickled(self.policy_config)))
        except grpc.RpcError as error:
            self.error = error
            return False
        return True

    def observe(self, timestep: int, observation: dict[str, Any], *, must_go: bool = False) -> None:
        data = pickled(TimedObservation(1e9 + timestep, timestep, observation, must_go))
        self.stub.SendObservations(pieces(data))

    def act(self) -> list[TimedAction]:
        data = self.stub.GetActions(lerobot_pb2.Empty()).data
        return sys.modules[__name__].pickle.loads(data) if data else []  # type: ignore[no-any-return]

    def stop(self) -> None:
        self.channel.close()


def pickled(value: Any) -> bytes:
    return sys.modules[__name__].pickle.dumps(value)


def pieces(data: bytes) -> Iterator[Any]:
    for begin in range(0, len(data), PIECE):
        is_last = begin + PIECE >= len(data)
        state = lerobot_pb2.TRANSFER_END if is_last else lerobot_pb2.TRANSFER_MIDDLE
        yield lerobot_pb2.Observation(transfer_state=state, data=data[begin : begin + PIECE])


services_pb2_grpc = lerobot_pb2_grpc
LOCK = threading.Lock()


def copy() -> types.ModuleType:
    """Return the module once more, to be changed by a shim."""
    with LOCK:
        module = types.ModuleType("stand_in_of_lerobot")
        module.__file__ = __file__
        sys.modules[module.__name__] = module
        with open(__file__) as source:
            exec(compile(source.read(), __file__, "exec"), module.__dict__)
        return module
