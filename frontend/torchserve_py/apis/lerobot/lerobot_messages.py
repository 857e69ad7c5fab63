"""What the messages of LeRobot's policy server hold, in msgpack: LeRobot's own client pickles them.

| message | keys |
|---|---|
| `PolicySetup` | ``model``: the model's name; ``actions_per_chunk``; ``features``: those of the robot |
| `Observation` | ``timestep``, ``timestamp``, ``must_go``; ``observation``: a map of openpi's, as bytes |
| `Actions` | ``timestep``, ``timestamp`` of the observation; ``period`` (seconds); ``actions``: an array of openpi's |

The server reads no pickle (CVE-2026-25874): it would run whatever code its sender chooses.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgpack
import msgspec

from torchserve_py.endpoints.failures import INTERNAL, EndpointError, Failure, bad_request
from ts.protocol.backed_msgpack import unpack

#: The key of an observation under which the handler finds what it is told of the robot.
LEROBOT: Final = "lerobot"
SHIM: Final = "python -m torchserve_py_client.lerobot"
#: What pickles of protocols 2 to 5 begin with.
_PICKLES: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
#: The longest header of a map in msgpack, and the most bytes that the features of a robot can have.
_LONGEST_HEADER: Final = 5
_MOST_FEATURES: Final = 1 << 16
#: Robots count actions; a month has fewer.
_MOST_STEPS: Final = 2**32
_MOST_ACTIONS: Final = 10_000

_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_STEPS)]


class Setup(msgspec.Struct):
    """Which policy a robot wants, and what the policy is told of the robot."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    actions_per_chunk: Annotated[int, msgspec.Meta(ge=1, le=_MOST_ACTIONS)]
    features: msgspec.Raw = msgspec.Raw(b"\x80")


class SentObservation(msgspec.Struct):
    """An observation; ``timestep`` is the number of the latest action that the robot has executed."""

    timestep: _Count
    timestamp: float
    observation: bytes
    must_go: bool = False


_SETUP: Final = msgspec.msgpack.Decoder(Setup)
_OBSERVATION: Final = msgspec.msgpack.Decoder(SentObservation)


def read_setup(data: bytes) -> Setup:
    """Read the data of a `PolicySetup`. Raises EndpointError: it is a pickle, or not such a map."""
    _refuse_pickle(data)
    if len(data) > _MOST_FEATURES:
        raise bad_request(f"The policy's setup has {len(data)} bytes; at most {_MOST_FEATURES} are taken.")
    try:
        setup = _SETUP.decode(data)
        if not isinstance(unpack(bytes(setup.features)), dict):
            raise msgspec.DecodeError("features is no map")
    except _UNREADABLE as error:
        raise bad_request(f"PolicySetup.data is not the map that {SHIM} sends: {error}") from error
    return setup


def read_observation(data: bytes) -> SentObservation:
    """Read the joined data of `Observation` messages. Raises EndpointError: it is a pickle, or not such a map."""
    _refuse_pickle(data)
    try:
        return _OBSERVATION.decode(data)
    except _UNREADABLE as error:
        raise bad_request(f"Observation.data is not the map that {SHIM} sends: {error}") from error


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, msgpack.UnpackException)


def _refuse_pickle(data: bytes) -> None:
    if data.startswith(_PICKLES):
        raise needs_shim()


def needs_shim() -> EndpointError:
    """Return the refusal of LeRobot's client without the shim."""
    return bad_request(
        "This server reads no pickles, which can run any code (CVE-2026-25874). LeRobot's client sends them unless it"
        f" is started with {SHIM}, which takes the same arguments."
    )


def body_of(sent: SentObservation, setup: Setup, executed: int) -> bytes:
    """Return an observation of openpi's with what the policy is told: how many actions were ``executed`` since its last
    chunk, and the entries of the setup.

    Raises EndpointError: the observation is no map.
    """
    reader, packer = msgpack.Unpacker(), msgpack.Packer()
    reader.feed(sent.observation[:_LONGEST_HEADER])
    try:
        entries = reader.read_map_header()
        if entries >= len(sent.observation):
            raise ValueError("it has more entries than bytes")
    except (ValueError, msgpack.UnpackException) as error:
        raise bad_request("Observation.data: observation is no map of msgpack.") from error
    told = b"".join(
        (
            packer.pack_map_header(4),
            *(packer.pack(each) for each in ("timestep", sent.timestep, "executed", executed)),
            *(packer.pack(each) for each in ("actions_per_chunk", setup.actions_per_chunk, "features")),
            bytes(setup.features),
        )
    )
    rest = memoryview(sent.observation)[reader.tell() :]
    return b"".join((packer.pack_map_header(entries + 1), rest, packer.pack(LEROBOT), told))


def chunk_of(answer: bytes | bytearray) -> Mapping[bytes, Any]:
    """Return the array of actions in the answer of a policy. Raises EndpointError: there is none of two dimensions."""
    actions = unpack(answer).get("actions")
    if not isinstance(actions, dict) or len(actions.get(b"shape") or ()) != 2:
        message = 'For a robot of LeRobot a policy returns {"actions": array [actions, joints]}, and this one did not.'
        raise EndpointError(Failure(500, INTERNAL, message))
    return actions


def pack_actions(sent: SentObservation, actions: Mapping[bytes, Any], period: float) -> bytes:
    """Return the data of an `Actions` message."""
    answer = {"timestep": sent.timestep, "timestamp": sent.timestamp, "period": period, "actions": actions}
    return bytes(msgpack.packb(answer))
