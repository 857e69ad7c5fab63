"""handlers/keypad: the same keys are heard however the sound is cut, encoded and sampled."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.e2e.keypad_tones import tones

HANDLER = "keypad/keypad_handler.py"
KEYS = "5501234567899ABCD*0#"


@pytest.fixture
def handler(handler_module: ModuleType, stateful_context: Any) -> Any:
    made = handler_module.KeypadHandler()
    made.initialize(stateful_context({"maxNumSequence": 8}))
    return made


def hear(handler: Any, context: Any, body: bytes, event: str = "append", rate: int = 24_000, name: str = "a") -> str:
    headers = {
        "ts_request_sequence_id": name,
        "realtime_event": event,
        "realtime_encoding": "pcm16",
        "realtime_rate": str(rate),
    }
    (heard,) = context.run(handler, [(headers, body)])
    return str(heard)


@pytest.mark.parametrize("size", [2, 500, 4800, 1_000_000])
@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100])
def test_all_keys(handler: Any, stateful_context: Any, size: int, rate: int) -> None:
    sound, context = tones(KEYS, rate), stateful_context({"maxNumSequence": 8})
    if size == 2:
        sound = sound[: len(tones("550", rate))]
    cuts = range(0, len(sound), size)
    heard = "".join(hear(handler, context, sound[begin : begin + size], rate=rate) for begin in cuts)
    assert heard == ("550" if size == 2 else KEYS)


def test_silence_noise_and_single_tones_are_no_keys(handler: Any, stateful_context: Any) -> None:
    noise = np.random.default_rng(1).normal(0, 3000, 24_000)
    tone = 9000 * np.sin(2 * np.pi * 770 * np.arange(24_000) / 24_000)
    for sound in (np.zeros(24_000), noise, tone):
        assert hear(handler, stateful_context({"maxNumSequence": 8}), sound.astype("<i2").tobytes()) == ""


def test_sequences_are_apart_and_a_commit_forgets(handler: Any, stateful_context: Any) -> None:
    context, sound = stateful_context({"maxNumSequence": 8}), tones("7")
    assert hear(handler, context, sound[:1200], name="a") == ""
    assert hear(handler, context, b"", "commit", name="b") == ""
    assert hear(handler, context, sound[1200:2000], name="a") == "7", "two blocks, in two pieces"
    assert hear(handler, context, sound[:1200], name="c") == ""
    assert hear(handler, context, b"", "commit", name="c") == ""
    assert hear(handler, context, sound[1200:2000], name="c") == "", "the first block was forgotten"


@pytest.mark.parametrize(
    ("body", "encoding", "rate"),
    [
        (b"abc", "pcm16", "24000"),
        (b"ab", "mp3", "24000"),
        (b"ab", "pcm16", None),
        (b"ab", "pcm16", "1"),
        ("ab", "pcm16", "8000"),
    ],
)
def test_what_cannot_be_read_is_refused_alone(
    handler: Any, stateful_context: Any, body: Any, encoding: str, rate: Any
) -> None:
    context, common = (
        stateful_context({"maxNumSequence": 8}),
        {"realtime_event": "append", "realtime_encoding": encoding},
    )
    given = common if rate is None else {**common, "realtime_rate": rate}
    usable = {**common, "realtime_encoding": "pcm16", "realtime_rate": "24000", "ts_request_sequence_id": "b"}
    refused, heard = context.run(handler, [({**given, "ts_request_sequence_id": "a"}, body), (usable, tones("7"))])
    assert refused.message.startswith("The sound cannot be read: ")
    assert (heard, refused.status) == ("7", 400)
