"""The parts of a conversation that need no session: turns, sentences, items, audio that waits, chunks of an answer."""

import json
import random
from itertools import product

import pytest

from torchserve_py.apis.realtime.chat_chunks import BadAnswer, ChatChunks
from torchserve_py.apis.realtime.client_events import BadEvent
from torchserve_py.apis.realtime.conversation_items import (
    Conversation,
    Item,
    SpokenPiece,
    answer_item,
    as_messages,
    newest,
    read_item,
)
from torchserve_py.apis.realtime.pending_audio import PendingAudio
from torchserve_py.apis.realtime.sentences import Sentences
from torchserve_py.apis.realtime.session_config import AudioFormat
from torchserve_py.apis.realtime.turn_detection import SpeechStarted, SpeechStopped, TurnDetection, TurnDetector
from torchserve_py.apis.realtime.turn_taking import TRANSITIONS, Deed, Happening, State, TurnTaking


def test_speech_starts_and_ends() -> None:
    detector = TurnDetector()
    settings = TurnDetection(threshold=0.6, silence_duration_ms=300)
    heard = [0.1, 0.59, 0.6, 0.46, 0.44, 0.44, 0.9, 0.1, 0.1, 0.1, 0.1]
    assert list(detector.hear(heard, 0.1, settings)) == [
        SpeechStarted(pytest.approx(0.2)),
        SpeechStopped(pytest.approx(1.0)),
    ]
    assert not detector.is_speech
    assert list(detector.hear([1.0], 0.1, settings)) == [SpeechStarted(pytest.approx(1.1))]
    detector.skip_to(5.0)
    assert list(detector.hear([0.0] * 3, 0.1, settings)) == [SpeechStopped(pytest.approx(5.3))]


def test_a_threshold_of_zero_hears_everything() -> None:
    detector = TurnDetector()
    settings = TurnDetection(threshold=0.0, silence_duration_ms=0)
    assert list(detector.hear([0.0, 0.0], 0.03, settings)) == [SpeechStarted(0.0)]
    settings = TurnDetection(threshold=0.5, silence_duration_ms=0)
    assert list(detector.hear([0.0, 0.0], 0.03, settings)) == [SpeechStopped(pytest.approx(0.09))]


def test_every_state_is_left_and_nothing_begins_a_second_response() -> None:
    reached = {state for state, _ in TRANSITIONS.values()}
    assert reached == set(State)
    for state, happening in product(State, Happening):
        turns = TurnTaking()
        turns.state = state
        deed = turns.after(happening)
        running = (State.responding, State.overlapping)
        assert not (deed is Deed.begin and state in running), (state, happening)
        assert (deed is Deed.begin) <= (turns.state in running)
        assert (deed is Deed.refuse) == (state in running and happening is Happening.request)


def test_random_happenings_begin_and_end_in_turn() -> None:
    dice = random.Random(7)
    turns, is_running = TurnTaking(), False
    for _ in range(20_000):
        happening = dice.choice([each for each in Happening if each is not Happening.over or is_running])
        deed = turns.after(happening)
        if deed is Deed.begin:
            assert not is_running
            is_running = True
        elif deed is Deed.interrupt or happening is Happening.over:
            is_running = False


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello there. How are you? Fine", ["Hello there.", " How are you?", " Fine"]),
        ("3.5 is a number, e.g. this.", ["3.5 is a number, e.g.", " this."]),
        ('He said "no!" Then left.', ['He said "no!"', " Then left."]),
        ("line\nline", ["line\n", "line"]),
        ("你好。再见", ["你好。", "再见"]),
        ("", []),
    ],
)
def test_sentences_do_not_depend_on_the_cuts(text: str, sentences: list[str]) -> None:
    for size in (1, 3, 100):
        cutter, found = Sentences(), []
        for begin in range(0, len(text), size):
            found += cutter.write(text[begin : begin + size])
        assert found + cutter.finish() == sentences


def test_a_text_without_marks_is_cut() -> None:
    cutter = Sentences()
    words = "word " * 200
    found = cutter.write(words) + cutter.finish()
    assert "".join(found) == words
    assert max(map(len, found)) <= 300
    assert max(map(len, Sentences().write("x" * 1000))) <= 300


def test_audio_waits() -> None:
    audio = PendingAudio(AudioFormat("pcm16", 1000), offset=2.0)
    audio.append(bytes(range(200)))
    assert audio.end == pytest.approx(2.1)
    audio.drop(2.01)
    assert audio.take(2.02) == bytes(range(20, 40))
    audio.drop(1.0)
    assert audio.take() == bytes(range(40, 200))
    assert (audio.take(), audio.end) == (b"", pytest.approx(2.1))


def test_a_spoken_message_is_cut_at_what_was_heard() -> None:
    item = answer_item(is_audio=True)
    item.spoken = [SpokenPiece("One two three.", 3.0), SpokenPiece(" Four five six.", 3.0)]
    item.truncate(10)
    assert item.members["content"][0]["transcript"] == "One two three. Four five six."
    item.truncate(4.1)
    assert (item.text, item.seconds) == ("One two three. Four", pytest.approx(4.1))
    item.truncate(0)
    assert (item.text, item.seconds) == ("", 0)


def test_items_as_messages() -> None:
    items = [
        read_item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}),
        read_item({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}),
        read_item({"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"}),
        read_item({"type": "function_call", "name": "g", "call_id": "2", "arguments": "{}"}),
        read_item({"type": "function_call_output", "call_id": "1", "output": "x"}),
        read_item({"type": "message", "role": "user", "content": [{"type": "input_audio", "transcript": ""}]}),
    ]
    messages = as_messages("", items)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert (messages[1]["content"], [call["id"] for call in messages[1]["tool_calls"]]) == ("b", ["1", "2"])


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (5, "item"),
        ({"type": "message", "role": "user"}, "item.content"),
        ({"type": "message", "role": "tool", "content": []}, "item.role"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "item.content[0].text"),
        ({"type": "message", "role": "user", "content": [{"type": "output_text", "text": ""}]}, "item.content[0].type"),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AA=="}]},
            "item.content[0].audio",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a", "color": 1}]},
            "item.content[0].color",
        ),
        ({"type": "message", "id": "", "role": "user", "content": []}, "item.id"),
        ({"type": "function_call", "name": "f"}, "item.arguments"),
        ({"type": "function_call_output", "call_id": "1"}, "item.output"),
        ({"type": "function_call", "name": "f", "arguments": "", "colour": 1}, "item"),
    ],
)
def test_what_is_no_item(given: object, param: str) -> None:
    with pytest.raises(BadEvent) as wrong:
        read_item(given)
    assert wrong.value.param == param


def test_a_conversation_is_bounded() -> None:
    conversation = Conversation()
    conversation.add(text_item("x" * (15 << 20), "large"))
    with pytest.raises(BadEvent, match="delete some"):
        conversation.add(text_item("y" * (2 << 20), "more"))
    conversation.delete("large")
    conversation.add(text_item("y" * (2 << 20), "more"))
    with pytest.raises(BadEvent, match="already"):
        conversation.add(text_item("z", "more"))
    with pytest.raises(BadEvent, match="no item"):
        conversation.add(text_item("z", "z"), "unknown")
    assert [item.id for item in conversation] == ["more"]


def text_item(text: str, item_id: str) -> Item:
    part = {"type": "input_text", "text": text}
    return read_item({"type": "message", "id": item_id, "role": "user", "content": [part]})


def test_chunks_do_not_depend_on_the_cuts() -> None:
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("Grüße", " dir")]
    stream = "".join(f"data: {json.dumps(each, ensure_ascii=False)}\r\n\r\n" for each in pieces)
    data = f": comment\n\n{stream}data: [DONE]\n\n".encode()
    for size in (1, 7, 1000):
        chunks = ChatChunks()
        found = [chunk for begin in range(0, len(data), size) for chunk in chunks.read(data[begin : begin + size])]
        chunks.finish()
        assert "".join(chunk.text for chunk in found) == "Grüße dir"


@pytest.mark.parametrize(
    "data",
    [b'{"choices": []}', b"hello\n", b"data: {\n\n", b'data: {"choices": 5}\n', b'data: {"error": {"message": "x"}}\n'],
)
def test_what_is_no_stream(data: bytes) -> None:
    chunks = ChatChunks()
    with pytest.raises(BadAnswer):
        chunks.read(data)
        chunks.finish()


def test_the_newest_items_are_kept() -> None:
    call = read_item({"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"})
    result = read_item({"type": "function_call_output", "call_id": "1", "output": "x" * 100})
    contents = [[{"type": "input_text", "text": text}] for text in "abc"]
    items = [read_item({"type": "message", "role": "user", "content": content}) for content in contents]
    assert newest(items, 0.7) == items[1:]
    assert newest(items, 1) == items[1:]
    assert newest(items, 0) == items[2:]
    assert newest([call, result, *items], 0.9) == items, "no result without its call"
    assert newest([items[0], call, result], 0.9) == [call, result]
    assert newest([call, result], 0.5) == [result], "there is nothing else"
