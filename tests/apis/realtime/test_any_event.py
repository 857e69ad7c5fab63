"""Whatever a client sends is carried out or refused with an error that names its event."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.apis.realtime.client_events import BadEvent, audio_in, id_in, read_event
from torchserve_py.apis.realtime.session_config import SessionConfig

KINDS = ["session.update", "transcription_session.update", "input_audio_buffer.append", "input_audio_buffer.commit"]
KEYS = [
    *("type", "event_id", "session", "model", "audio", "final", "input", "format", "rate", "transcription", "language"),
    *("turn_detection", "input_audio_format", "input_audio_transcription", "prompt"),
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*KINDS, "transcription", "audio/pcm", "audio/pcmu", "pcm16", "g711_alaw", "YWI=", "\ud800"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


def named(name: str) -> str:
    if name != "ears":
        raise BadEvent("There is no such model.", "model_not_found")
    return name


def carry_out(data: bytes) -> None:
    """Do with a message what a session does."""
    event = read_event(data)
    if event.session is not msgspec.UNSET:
        for beta in (False, True):
            config = SessionConfig("ears").updated(event.session, beta=beta, named=named)
            msgspec.json.encode(config.described("sess", beta=beta))
            msgspec.json.encode(config.hints)
    audio_in(event)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_any_object(event: dict[str, Any]) -> None:
    data = json.dumps(event).encode()
    try:
        carry_out(data)
    except BadEvent as error:
        assert str(error)
    assert id_in(data) in (event.get("event_id"), None)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    id_in(data)
    with pytest.raises(BadEvent):
        carry_out(data)


@pytest.mark.parametrize("depth", [500, 900, 1000, 5000, 100_000])
@pytest.mark.parametrize("place", ["turn_detection", "transcription", "format"])
def test_any_depth(depth: int, place: str) -> None:
    nested = '{"x":' * depth + "1" + "}" * depth
    session = f'{{"audio": {{"input": {{"{place}": {nested}}}}}}}'
    with pytest.raises(BadEvent):
        carry_out(f'{{"type": "session.update", "event_id": "deep", "session": {session}}}'.encode())
