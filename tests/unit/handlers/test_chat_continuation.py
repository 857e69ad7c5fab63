"""handlers/chat: a generation that broke off continues from its tokens as if it had not."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.handlers.chat_server import CHAT, Server
from tests.unit.handlers.conftest import HANDLERS, load_module

from ts.apis.openai.completion_chunks import ChunkReader, Piece, Replay, merged

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("llguidance")
pytestmark = pytest.mark.torch

MORE = {"ignore_eos": True, "max_completion_tokens": 24}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"enum": [10, 20, 30]}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TOOLS = {
    "tools": [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA, "strict": True}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}}
DRAWN = {"temperature": 1.0, "seed": 5}
MARKS = ["<think>", "</think>"]


@pytest.fixture(scope="module")
def handlers() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HANDLERS / "chat"))
        yield load_module(HANDLERS / "chat" / "chat_handler.py")
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def start(handlers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Server]:
    """Begin a worker with a model whose tokens are bytes."""
    from tests.contracts.scripted_chat import byte_tokenizer

    return started(handlers, tmp_path_factory.mktemp("chat"), byte_tokenizer())


@pytest.fixture(scope="module")
def start_thinking(handlers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Server]:
    """Begin a worker with a model that has tokens around its thoughts, too."""
    from tests.contracts.scripted_chat import byte_tokenizer

    words = byte_tokenizer()
    words.add_tokens(MARKS)
    words.chat_template += "{% if thinks %}<think>{% endif %}"
    return started(handlers, tmp_path_factory.mktemp("chat"), words)


def started(handlers: ModuleType, folder: Path, words: Any) -> Callable[[], Server]:
    """Return what begins a worker with a model whose weights mean nothing, and exact arithmetic."""
    words.save_pretrained(folder / "model")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        max_position_embeddings=4096,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
        initializer_range=0.5,
        **size,
    )
    transformers.LlamaForCausalLM(config).double().save_pretrained(folder / "model")
    return lambda: Server(handlers.ChatHandler(), folder, {"kv_bytes": 50_000_000, "max_tokens": 200})


class Run:
    """What a run has sent, step by step: pieces and tokens; and how it has ended."""

    def __init__(self, server: Server, asked: dict[str, Any], committed: list[int]) -> None:
        messages = [{"role": "user", "content": "What do you see?"}]
        body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, **asked}
        server.send("run", body, values={"committed_tokens": committed}, **CHAT)
        #: How often the model ran.
        self.count = 0
        while server.live:
            server.step()
            self.count += 1
        assert "run" not in server.errors, server.errors
        reader, self.steps = ChunkReader(), list[tuple[list[Piece], list[int]]]()
        for part in server.parts["run"]:
            known = len(reader.tokens)
            pieces = reader.read(part)
            self.steps.append((pieces, reader.tokens[known:]))
        assert reader.usage is not None
        self.reason = reader.reason
        self.used = (reader.usage["prompt_tokens"], reader.usage["completion_tokens"])
        assert reader.usage["prompt_tokens_details"]["cached_tokens"] <= self.used[0]

    def until(self, step: int) -> tuple[list[Piece], list[int]]:
        """Return the pieces and the tokens that came before a step."""
        before = self.steps[:step]
        return [each for pieces, _ in before for each in pieces], [each for _, tokens in before for each in tokens]


def plain(pieces: list[Piece]) -> list[Piece]:
    """Return pieces that are joined, without the ids of calls, which are random."""
    return json.loads(
        json.dumps(merged(pieces)), object_hook=lambda each: {**each, "id": None} if "id" in each else each
    )


def check(start: Callable[[], Server], asked: dict[str, Any], every: int = 3) -> list[Piece]:
    """Check that a generation continues from some of its steps; return its pieces."""
    whole, other = Run(start(), asked, []), start()
    expected, _ = whole.until(len(whole.steps))
    assert len(whole.steps) > every
    for step in range(1, len(whole.steps), every):
        pieces, tokens = whole.until(step)
        assert tokens or not pieces
        again, replay = Run(other, asked, tokens), Replay(pieces)
        assert again.count == whole.count - len(tokens), "the model does not choose them again"
        assert again.steps[0][1][: len(tokens)] == tokens
        rest = [new for piece in again.until(len(again.steps))[0] if (new := replay.rest(piece)) is not None]
        assert plain([*pieces, *rest]) == plain(expected)
        assert (again.reason, again.used) == (whole.reason, whole.used)
    return merged(expected)


@pytest.mark.parametrize("how", [{"temperature": 0}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
        {"min_tokens": 9},
    ],
    ids=["plain", "logprobs", "penalties", "least"],
)
def test_text_continues(start: Callable[[], Server], how: dict[str, Any], more: dict[str, Any]) -> None:
    (piece,) = check(start, MORE | how | more)
    assert bool(piece["logprobs"]) == ("logprobs" in more)


def test_a_stop_string_may_begin_before_and_end_behind_the_border(start: Callable[[], Server]) -> None:
    (piece,) = check(start, MORE | DRAWN)
    text = piece["content"]
    place = next(at for at in range(8, len(text) - 4) if text.find(text[at : at + 4]) == at)
    (stopped,) = check(start, MORE | DRAWN | {"stop": [text[place : place + 4]]}, 1)
    assert stopped["content"] == text[:place]


@pytest.mark.parametrize("how", [{"temperature": 0}, DRAWN], ids=["greedy", "drawn"])
def test_a_call_of_a_tool_continues(start: Callable[[], Server], how: dict[str, Any]) -> None:
    pieces = check(start, how | TOOLS, 11)
    (call,) = (piece["tool_calls"][0]["function"] for piece in pieces if "tool_calls" in piece)
    assert call["name"] == "paint"
    assert set(json.loads(call["arguments"])) == {"colour", "count"}


@pytest.mark.parametrize("how", [{"temperature": 0}, DRAWN], ids=["greedy", "drawn"])
def test_json_continues(start: Callable[[], Server], how: dict[str, Any]) -> None:
    (piece,) = check(start, how | FORMAT, 11)
    assert set(json.loads(piece["content"])) == {"colour", "count"}


def test_a_thought_continues(start_thinking: Callable[[], Server]) -> None:
    closes = start_thinking().handler.text.tokenizer.convert_tokens_to_ids(MARKS[1])
    thinks = {"chat_template_kwargs": {"thinks": True}, "logit_bias": {f"{closes}": 6}}
    pieces = check(start_thinking, MORE | DRAWN | thinks)
    assert all(any(piece.get(kind) for piece in pieces) for kind in ("reasoning", "content"))


def test_other_requests_get_no_tokens_and_wrong_ones_are_refused(start: Callable[[], Server]) -> None:
    server, asked = start(), {"messages": [{"role": "user", "content": "a"}], "stream": True, **MORE}
    server.send("plain", asked, **CHAT)
    server.send("several", asked | {"n": 2}, values={"committed_tokens": [1]}, **CHAT)
    server.run()
    assert "token_ids" not in "".join(server.parts["plain"] + server.parts["several"])
    for wrong in ([-1], [100_000], ["a"], [True], "text"):
        server.send("alone", asked, values={"committed_tokens": wrong}, **CHAT)
        server.run()
        status, text = server.errors.pop("alone")
        assert (status, "committed_tokens has to be a list of tokens" in text) == (400, True)
