"""LeRobot's robot client, unmodified, for a server that reads no pickles: torchserve-py.

It takes the arguments of LeRobot's own command; the policy's name is that of a served model::

    python -m torchserve_py_client.lerobot --server_address=localhost:7070 --policy_type=act \\
        --pretrained_name_or_path=MODEL --actions_per_chunk=50 --robot.type=so101_follower …

LeRobot's client pickles what it sends, and unpickles what it gets. `install` gives it `SafeMessages` in place of the
module `pickle`: msgpack, with arrays as openpi writes them. The variable ``TORCHSERVE_KEY`` has the inference key, if
the server needs one. The connection is not encrypted, as with LeRobot itself.
"""

from __future__ import annotations

import importlib
import os
import secrets
from types import ModuleType
from typing import Any, Final, NamedTuple

import grpc
import msgpack

#: The module of LeRobot with its client.
ROBOT_CLIENT: Final = "lerobot.async_inference.robot_client"
#: What a server answers that does not know the robot.
_CAUSE: Final = "ts-error-cause"
_UNKNOWN: Final = "robot_unknown"
_KEY: Final = "TORCHSERVE_KEY"
#: Truth values, numbers and texts, as numpy writes the kinds of their types.
_KINDS: Final = "biufSU"


class SafeMessages:
    """What LeRobot's client uses of the module `pickle`, with messages that can hold no code."""

    def __init__(self, client: ModuleType) -> None:
        self._timed_action, self._torch = client.TimedAction, client.torch

    def dumps(self, value: Any) -> bytes:
        """Return an observation or the setup of a policy as bytes. Raises TypeError: part of it is not plain data."""
        if hasattr(value, "pretrained_name_or_path"):
            setup = {
                "model": value.pretrained_name_or_path,
                "actions_per_chunk": value.actions_per_chunk,
                "features": value.lerobot_features,
            }
            return bytes(msgpack.packb(setup, default=_plain))
        observation = {
            "timestep": value.timestep,
            "timestamp": value.timestamp,
            "must_go": value.must_go,
            "observation": msgpack.packb(value.observation, default=_plain),
        }
        return bytes(msgpack.packb(observation))

    def loads(self, data: bytes) -> list[Any]:
        """Return the actions of a chunk. Raises TypeError, ValueError: the bytes are none."""
        chunk = msgpack.unpackb(data)
        array, start, began, period = (chunk[name] for name in ("actions", "timestep", "timestamp", "period"))
        number_type = getattr(self._torch, _NUMBER_TYPES[array[b"dtype"]])
        actions = self._torch.frombuffer(bytearray(array[b"data"]), dtype=number_type).reshape(array[b"shape"])
        return [
            self._timed_action(timestamp=began + number * period, timestep=start + number, action=action)
            for number, action in enumerate(actions)
        ]


#: The types of torch for those of numpy.
_NUMBER_TYPES: Final = {
    **{"<f2": "float16", "<f4": "float32", "<f8": "float64"},
    **{"|i1": "int8", "<i2": "int16", "<i4": "int32", "<i8": "int64", "|u1": "uint8"},
}


def _plain(value: Any) -> Any:
    """Return what stands for an array, a tensor or a number of numpy's. Raises TypeError: nothing stands for it."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if not kind or kind not in _KINDS:
        raise TypeError(f"an observation has arrays and plain values, and this is of type {type(value).__name__}")
    if not value.shape:
        return value.item()
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


class _CallDetails(NamedTuple):
    """What gRPC is told of a call, besides its message."""

    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str], ...]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _NamedCalls(grpc.UnaryUnaryClientInterceptor, grpc.StreamUnaryClientInterceptor):
    """Adds metadata to every call: which robot it is from, how long an action takes, and the key."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Send a call with the metadata added."""
        return continuation(self._named(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """Send a call with the metadata added."""
        return continuation(self._named(client_call_details), request_iterator)

    def _named(self, details: Any) -> _CallDetails:
        more = getattr(details, "wait_for_ready", None), getattr(details, "compression", None)
        return _CallDetails(details.method, details.timeout, self._metadata, details.credentials, *more)


class _Stub:
    """The stub of LeRobot's client, which introduces the robot again to a server that was restarted."""

    def __init__(self, client: Any, stub: Any) -> None:
        self._client, self._get_actions = client, stub.GetActions
        self.Ready = stub.Ready
        self.SendPolicyInstructions = stub.SendPolicyInstructions
        self.SendObservations = stub.SendObservations

    def GetActions(self, request: Any) -> Any:
        """Return the next chunk of actions. Raises grpc.RpcError: there is none."""
        try:
            return self._get_actions(request)
        except grpc.RpcError as error:
            metadata: Any = error.trailing_metadata() or ()
            if (_CAUSE, _UNKNOWN) not in metadata or not self._client.start():
                raise
            return self._get_actions(request)


def install() -> ModuleType:
    """Let LeRobot's client, in this process, speak with torchserve-py; return the client's module.

    Raises ImportError: LeRobot is not installed, or has no such client.
    """
    module = importlib.import_module(ROBOT_CLIENT)
    if not isinstance(module.pickle, SafeMessages):
        module.pickle = SafeMessages(module)  # type: ignore[attr-defined]
        module.RobotClient = _named_client(module)  # type: ignore[attr-defined]
    return module


def _named_client(module: ModuleType) -> type[Any]:
    """Return LeRobot's client, whose calls name the robot."""
    key = os.environ.get(_KEY)

    class RobotClient(module.RobotClient):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            metadata = [
                ("ts_request_robot", secrets.token_hex(16)),
                ("ts_request_control_period_ms", f"{config.environment_dt * 1000:.3f}"),
                *([("authorization", f"Bearer {key}")] if key else []),
            ]
            channel = grpc.intercept_channel(self.channel, _NamedCalls(tuple(metadata)))
            self.stub = _Stub(self, module.services_pb2_grpc.AsyncInferenceStub(channel))

    return RobotClient


def main() -> None:
    """Run LeRobot's command."""
    module = install()
    module.register_third_party_plugins()
    module.async_client()


if __name__ == "__main__":
    main()
