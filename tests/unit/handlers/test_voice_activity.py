"""handlers/voice_activity: many sounds in one batch give what each gives alone, and what the package itself gives."""

import random
from types import ModuleType
from typing import Any

import pytest
from tests.speech import RATE, say, silence

from ts.handler_utils.audio import Resampler, decode_audio, encode_audio
from ts.sequence.encoding import StateEncoding

for package in ("onnxruntime", "silero_vad"):
    pytest.importorskip(package)

HANDLER = "voice_activity/voice_activity_handler.py"
SEQUENCE_ID = "ts_request_sequence_id"


class Server:
    """Plays the server's part for one freshly loaded handler."""

    def __init__(self, module: ModuleType, context: Any) -> None:
        self.handler = module.VoiceActivityHandler()
        self.context = context
        self.handler.initialize(context)

    def post(self, pieces: dict[str, Any]) -> dict[str, Any]:
        """Send a piece of each sequence in one batch; return the answers by sequence."""
        answers = self.context.run(self.handler, [({SEQUENCE_ID: name}, piece) for name, piece in pieces.items()])
        return dict(zip(pieces, answers, strict=True))


@pytest.fixture
def server(handler_module: ModuleType, stateful_context: type) -> Server:
    return Server(handler_module, stateful_context({"batchSize": 32, "maxNumSequence": 100}))


def sound() -> bytes:
    """Two sentences with pauses."""
    return silence(0.5) + say("hello world") + silence(1) + say("where do you live") + silence(0.7)


def pieces_of(whole: bytes, size: int) -> list[bytes]:
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def test_32_sequences_in_one_batch_have_the_probabilities_of_each_alone(server: Server) -> None:
    rng = random.Random(7)
    whole = sound()
    begins = {f"s{number}": 2 * rng.randrange(RATE) for number in range(32)}
    alone: dict[str, list[float]] = {}
    for name, begin in begins.items():
        alone[name] = server.post({f"{name} alone": whole[begin : begin + 2 * RATE]})[f"{name} alone"]["probabilities"]
    batched: dict[str, list[float]] = {name: [] for name in begins}
    cuts = {name: pieces_of(whole[begin : begin + 2 * RATE], 1024) for name, begin in begins.items()}
    for turn in range(len(cuts["s0"])):
        for name, answer in server.post({name: pieces[turn] for name, pieces in cuts.items()}).items():
            batched[name] += answer["probabilities"]
    for name, probabilities in alone.items():
        assert len(probabilities) == RATE // 512
        assert batched[name] == pytest.approx(probabilities, abs=1e-5)
    assert max(map(max, alone.values())) > 0.9
    assert min(map(min, alone.values())) < 0.1


@pytest.mark.torch
def test_the_probabilities_are_those_of_the_package(server: Server) -> None:
    import torch
    from silero_vad import load_silero_vad

    network = load_silero_vad()
    whole = sound()
    samples = torch.frombuffer(bytearray(whole), dtype=torch.int16).float() / 32768
    expected = [network(window, RATE).item() for window in samples.unfold(0, 512, 512)]
    assert server.post({"s": whole})["s"]["probabilities"] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_how_a_sound_is_cut_does_not_matter(server: Server) -> None:
    rng = random.Random(3)
    rest = whole = sound()
    found: dict[str, list[Any]] = {"probabilities": [], "events": []}
    while rest:
        size = 2 * rng.choice((0, 1, 7, 255, 512, 3000))
        for key, values in server.post({"cut": rest[:size], "other": silence(0.1)})["cut"].items():
            found[key] += values
        rest = rest[size:]
    whole_answer = server.post({"whole": whole})["whole"]
    assert found["probabilities"] == pytest.approx(whole_answer["probabilities"], abs=1e-5)
    assert found["events"] == whole_answer["events"]


def test_it_says_when_speech_starts_and_ends(server: Server) -> None:
    first, second = len(say("hello world")) / 2 / RATE, len(say("where do you live")) / 2 / RATE
    events = server.post({"s": sound()})["s"]["events"]
    assert [next(iter(event)) for event in events] == ["start", "end", "start", "end"]
    moments = [next(iter(event.values())) for event in events]
    assert moments == pytest.approx([0.5, 0.5 + first, 1.5 + first, 1.5 + first + second], abs=0.4)


def test_a_stored_state_goes_on(server: Server) -> None:
    before, after = sound()[: 2 * RATE + 6], sound()[2 * RATE + 6 :]
    server.post({"s": before})
    encoding = StateEncoding()
    states = server.context.sequence_cache
    states["copy"] = encoding.decode(encoding.encode(states["s"]))
    answers = server.post({"s": after, "copy": after})
    assert answers["copy"] == answers["s"]


@pytest.mark.parametrize("body", [b"odd", "text", {"x": 1}, [1, 2]])
def test_a_row_that_is_no_sound_fails_alone(server: Server, body: Any) -> None:
    answers = server.post({"a": silence(0.1), "b": body, "c": silence(0.1)})
    assert answers["b"].status == 400
    assert "16-bit" in answers["b"].message
    assert len(answers["a"]["probabilities"]) == 3
    assert answers["a"]["probabilities"] == pytest.approx(answers["c"]["probabilities"], abs=1e-5)


def test_a_piece_without_a_whole_window_has_no_answer_yet(server: Server) -> None:
    assert server.post({"s": b"", "t": silence(0.031)}) == {
        "s": {"probabilities": [], "events": []},
        "t": {"probabilities": [], "events": []},
    }
    assert len(server.post({"t": silence(0.001)})["t"]["probabilities"]) == 1


def test_a_conversation_gets_the_probabilities_at_any_rate(server: Server) -> None:
    whole = sound()
    expected = server.post({"plain": whole})["plain"]["probabilities"]
    samples = Resampler(RATE, 24_000).hear(decode_audio(whole, "pcm16"))
    found: list[float] = []
    for piece in pieces_of(encode_audio(samples, "pcm16"), 9600):
        headers = {"realtime_event": "append", "realtime_encoding": "pcm16", "realtime_rate": "24000"}
        (answer,) = server.context.run(server.handler, [({SEQUENCE_ID: "call", **headers}, piece)])
        assert answer.keys() == {"probabilities", "window"}
        assert answer["window"] == 0.032
        found += answer["probabilities"]
    assert abs(len(found) - len(expected)) <= 1
    differing = [1 for one, other in zip(found, expected, strict=False) if (one > 0.5) != (other > 0.5)]
    assert len(differing) < 0.05 * len(found)
