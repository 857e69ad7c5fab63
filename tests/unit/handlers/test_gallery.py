"""The gallery without a server: sound that is cut anywhere, states that a store can hold, and what is refused."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ts.sequence.encoding import StateEncoding
from ts.service import PredictionException

for package in ("espeakng_loader", "pocketsphinx", "pyrnnoise", "skimage", "sklearn"):
    pytest.importorskip(package)

GALLERY = Path(__file__).resolve().parents[3] / "handlers" / "gallery"
RATE = 16_000


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ready(name: str, model: str) -> Any:
    made = getattr(load(name), model)()
    made.setup("cpu")
    return made


@pytest.fixture(scope="module")
def speak() -> Any:
    return ready("speak", "Speak")


def said(speak: Any, text: str, rate: int) -> bytes:
    """A text as 16-bit samples."""
    sound = speak.predict(text)
    times = np.arange(len(sound.samples) * rate // sound.rate) / rate
    samples = np.interp(times, np.arange(len(sound.samples)) / sound.rate, sound.samples)
    return bytes((samples * 32767).astype("<i2").tobytes())


def cut(sound: bytes, size: int) -> list[bytes]:
    return [sound[start : start + size] for start in range(0, len(sound), size)]


def test_an_unknown_voice_is_refused_and_no_text_is_no_sound(speak: Any) -> None:
    with pytest.raises(PredictionException, match="no voice 'klingon'"):
        speak.predict("hello", voice="klingon")
    assert len(speak.predict("").samples) == 0
    assert len(speak.predict("hello").samples) > 0.2 * speak.rate


def test_a_phrase_in_pieces_is_heard_once_and_the_state_can_be_stored(speak: Any) -> None:
    model, encoding = ready("wake_word", "WakeWord"), StateEncoding()
    state: dict[str, Any] = {}
    heard = []
    for piece in cut(said(speak, "open sesame", RATE) + bytes(4 * RATE), RATE):
        state = encoding.decode(encoding.encode(state))
        heard.append(model.predict(piece, state))
    assert heard.count(True) == 1
    assert not any(model.predict(piece, state) for piece in cut(said(speak, "the music plays", RATE), RATE))
    for wrong in (b"odd", bytes(2 * 31 * RATE)):
        with pytest.raises(PredictionException):
            model.predict(wrong, state)


def test_how_noise_is_cut_does_not_matter_and_little_is_left_of_it() -> None:
    model = ready("denoise", "Denoise")
    noise = np.random.default_rng(0).normal(0, 1000, 48_000).astype("<i2").tobytes()
    state: dict[str, Any] = {}
    pieces = b"".join(model.predict(piece, state) for piece in cut(noise, 1234))
    assert pieces == model.predict(noise, {})
    assert np.frombuffer(pieces, "<i2")[24_000:].std() < 10
    with pytest.raises(PredictionException, match="3 bytes"):
        model.predict(b"odd", state)


def test_each_request_of_a_batch_gets_the_vectors_of_its_texts() -> None:
    model = ready("embed", "Embed")
    first, none, second = model.predict([["a loop", "a string"], [], ["a loop"]])
    assert (len(first), none, len(second)) == (2, [], 1)
    assert first[0] == pytest.approx(second[0])
    assert np.linalg.norm(first[1]) == pytest.approx(1)


def test_a_series_that_repeats_is_continued() -> None:
    forecast = load("forecast").forecast
    state: list[float] = []
    answers = [forecast(float(day % 7), state) for day in range(600)]
    assert answers[:29] == [[]] * 29
    assert answers[-1] == pytest.approx([day % 7 for day in range(600, 606)], abs=0.1)
    assert len(state) == 500
    assert forecast(5.0, [5.0] * 40) == pytest.approx([5] * 6)
    with pytest.raises(PredictionException, match="not inf"):
        forecast(float("inf"), state)


def test_what_was_read_is_not_recommended_again() -> None:
    model = ready("recommend", "Recommend")
    ada: dict[str, Any] = {}
    first = model.predict("while", ada)
    assert "while" not in first
    assert not {"while", first[0]} & set(model.predict(first[0], ada))
    assert StateEncoding().decode(StateEncoding().encode(ada)) == ada
    with pytest.raises(PredictionException, match="no page 'cooking'"):
        model.predict("cooking", ada)
