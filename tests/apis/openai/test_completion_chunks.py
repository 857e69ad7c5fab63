"""Pieces of a chat completion: how they are read and joined, and what a second generation leaves out."""

import json
from typing import Any

import pytest

from ts.apis.openai.completion_chunks import ChunkReader, Piece, Replay, merged, pieces_of
from ts.jobs.errors import HandlerFailed, RowFailure


def text(content: str) -> Piece:
    return {"content": content, "logprobs": []}


def call(arguments: str, index: int = 0, **about: Any) -> Piece:
    return {"tool_calls": [{"index": index, **about, "function": {"arguments": arguments}}]}


def test_chunks_arrive_in_any_pieces() -> None:
    chunks = [
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}, "token_ids": [5, 6]}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}},
    ]
    sent = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    for size in (1, 7, len(sent)):
        reader = ChunkReader()
        read = [piece for at in range(0, len(sent), size) for piece in reader.read(sent[at : at + size])]
        assert read == [{"reasoning": "hm"}, {"content": "a", "logprobs": [{"token": "a"}]}]
        assert (reader.reason, reader.usage, reader.tokens) == ("stop", {"prompt_tokens": 1}, [5, 6])


@pytest.mark.parametrize("sent", ["data: 1\n\n", "data: {\n\n", None, 'data: {"choices": [1]}\n\n'])
def test_what_is_no_chunk_is_the_handlers_fault(sent: Any) -> None:
    with pytest.raises(HandlerFailed):
        ChunkReader().read(sent)


def test_pieces_of_one_kind_are_joined() -> None:
    pieces = [text("a"), text("b"), call("", id="1"), call("{"), call("}"), call("x", 1), {"reasoning": "r"}, text("c")]
    assert merged(pieces) == [text("ab"), call("{}", id="1"), call("x", 1), {"reasoning": "r"}, text("c")]


@pytest.mark.parametrize("kept", range(9))
def test_a_second_generation_brings_what_is_new(kept: int) -> None:
    said = [*map(text, "abcd"), call("", id="1"), call("{"), call("}")]
    again = [text("ab"), text("cd"), call("{}", id="2")]
    replay = Replay(said[:kept])
    rest = [new for piece in again if (new := replay.rest(piece)) is not None]
    replay.end()
    whole = merged([*said[:kept], *rest])
    assert [piece.get("content") or piece["tool_calls"][0]["function"]["arguments"] for piece in whole] == [
        "abcd",
        "{}",
    ]


def test_a_generation_that_differs_is_refused() -> None:
    for again in (text("ax"), {"reasoning": "a"}, call("a")):
        with pytest.raises(RowFailure, match="something else"):
            Replay([text("ab")]).rest(again)
    shorter = Replay([text("ab")])
    shorter.rest(text("a"))
    with pytest.raises(RowFailure, match="something else"):
        shorter.end()


def test_a_whole_message_has_the_same_pieces() -> None:
    message = {"content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    (piece,) = pieces_of(message)
    assert piece["tool_calls"][0]["index"] == 0
