"""handlers/transcribe: the words of a sound, however it comes, whoever speaks beside it, whatever is lost."""

import random
from types import ModuleType
from typing import Any

import pytest
from tests.speech import VOICE, say, silence

from ts.sequence.encoding import StateEncoding

pytest.importorskip("pocketsphinx")

HANDLER = "transcribe/transcribe_handler.py"
SEQUENCE_ID, SEQUENCE_END = "ts_request_sequence_id", "ts_request_sequence_end"
SENTENCES = ["hello world", "i think that is right", "many years ago"]
PIECE = 12_800  # 0.4 s


class Server:
    """Plays the server's part for one freshly loaded handler."""

    def __init__(self, module: ModuleType, context: Any) -> None:
        self.handler = module.TranscribeHandler()
        self.context = context
        self.handler.initialize(context)

    def post(self, pieces: dict[str, Any], *, end: bool = False) -> dict[str, Any]:
        """Send a piece of each sequence in one batch; return the answers by sequence."""
        headers = {SEQUENCE_END: "true"} if end else {}
        requests = [({SEQUENCE_ID: name, **headers}, piece) for name, piece in pieces.items()]
        answers = self.context.run(self.handler, requests)
        return dict(zip(pieces, answers, strict=True))

    def transcript(self, whole: bytes) -> list[Any]:
        """Return the answers to the pieces of a sequence of its own."""
        pieces = pieces_of(whole)
        answers = [self.post({"alone": piece}, end=piece is pieces[-1])["alone"] for piece in pieces]
        del self.context.sequence_cache["alone"]
        return answers


@pytest.fixture
def server(handler_module: ModuleType, stateful_context: type) -> Server:
    return Server(handler_module, stateful_context({"maxNumSequence": 100, "handler": {"recognisers": 1}}))


def sound(*sentences: str) -> bytes:
    return silence(0.4) + b"".join(say(each, *VOICE) + silence(0.7) for each in sentences)


def pieces_of(whole: bytes) -> list[bytes]:
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def final(answers: list[Any]) -> list[str]:
    return [text for answer in answers for text in answer["final"]]


def test_the_words_are_recognised_as_they_come(server: Server) -> None:
    answers = server.transcript(sound(*SENTENCES))
    assert final(answers) == SENTENCES
    assert any(answer["partial"].startswith("i think") for answer in answers)
    assert answers[0] == answers[-1] == {"final": [], "partial": ""}


def test_how_a_sound_is_cut_does_not_matter(server: Server) -> None:
    rng = random.Random(5)
    rest = whole = sound(*SENTENCES[:2])
    found: list[str] = []
    while rest:
        size = 2 * rng.choice((0, 1, 479, 480, 5000))
        answer = server.post({"cut": rest[:size]}, end=len(rest) <= size)["cut"]
        found += answer["final"]
        rest = rest[size:]
    assert found == final(server.transcript(whole))


def test_a_transcript_goes_on_from_what_a_store_keeps(server: Server) -> None:
    """After each piece the state is written and read again, and so the recogniser is lost."""
    whole = sound(*SENTENCES[:2])
    listeners = server.context.sequence_cache
    encoding = listeners.encoding
    undisturbed = server.transcript(whole)
    answers = []
    for piece in pieces_of(whole):
        answers.append(server.post({"s": piece}, end=len(answers) == len(undisturbed) - 1)["s"])
        assert isinstance(encoding, StateEncoding)
        listeners["s"] = encoding.decode(encoding.encode(listeners["s"]))
    assert answers == undisturbed


def test_speakers_share_a_recogniser(server: Server) -> None:
    sounds = {"a": pieces_of(sound(SENTENCES[0])), "b": pieces_of(silence(0.2) + sound(SENTENCES[2]))}
    found: dict[str, list[str]] = {"a": [], "b": []}
    for turn in range(max(map(len, sounds.values()))):
        now = {name: pieces[turn] for name, pieces in sounds.items() if turn < len(pieces)}
        for name, answer in server.post(now).items():
            found[name] += answer["final"]
    assert found == {name: final(server.transcript(b"".join(pieces))) for name, pieces in sounds.items()}


def test_the_last_utterance_ends_with_its_sequence(server: Server) -> None:
    whole = silence(0.4) + say("hello world", *VOICE)
    server.post({"s": whole})
    assert server.post({"s": b""}, end=True) == {"s": {"final": ["hello world"], "partial": ""}}


def test_little_of_a_silence_is_kept_and_no_endless_speech(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("listener.MOST_SPEECH", 4 * 32_000)
    for _ in range(2):
        server.post({"s": silence(30)})
    assert len(server.context.sequence_cache["s"].to_dict()["sound"]) <= 32_000
    babble = say("one two three four five six seven eight nine ten " * 2, *VOICE, "-g", "0")
    assert len(babble) > 5 * 32_000, "longer than any utterance"
    assert server.post({"t": babble})["t"]["final"]
    assert len(server.context.sequence_cache["t"].to_dict()["sound"]) <= 4 * 32_000


def test_a_piece_that_would_hold_up_the_others_is_refused(server: Server) -> None:
    refused = server.post({"s": silence(30.1)})["s"]
    assert refused.status == 413
    assert "960000 is the most" in refused.message


@pytest.mark.parametrize("body", [b"odd", "text", [1, 2]])
def test_a_row_that_is_no_sound_fails_alone(server: Server, body: Any) -> None:
    answers = server.post({"a": silence(0.1), "b": body})
    assert answers["b"].status == 400
    assert "16-bit" in answers["b"].message
    assert answers["a"] == {"final": [], "partial": ""}


def test_it_needs_a_recogniser(handler_module: ModuleType, stateful_context: type) -> None:
    with pytest.raises(ValueError, match="recognisers: 0; at least 1"):
        Server(handler_module, stateful_context({"handler": {"recognisers": 0}}))


def test_events_of_the_realtime_api(server: Server) -> None:
    def post(kind: str, body: Any = b"", rate: str = "16000", encoding: str = "pcm16") -> str:
        told = {"realtime_event": kind, "realtime_rate": rate, "realtime_encoding": encoding}
        (answer,) = server.context.run(server.handler, [({SEQUENCE_ID: "a", **told}, body)])
        return answer if isinstance(answer, str) else f"{answer.status}: {answer.message}"

    whole = sound("hello world", "many years ago")
    while whole.endswith(b"\0\0"):
        whole = whole[:-2]
    assert "".join(post("append", piece) for piece in pieces_of(whole)) == "hello world "
    assert post("commit").endswith("years ago "), "a commit ends the utterance"
    assert "".join(post("append", piece) for piece in pieces_of(whole)[:3]) == ""
    assert post("clear") == ""
    assert post("commit") == "", "what was cleared is forgotten"
    for wrong in ({"rate": "x"}, {"rate": "1000000007"}, {"encoding": "mp3"}, {"body": b"abc"}, {"body": "text"}):
        assert "The sound cannot be read: " in post("append", **{"body": b"ab", **wrong})
