"""handlers/chat: where a model's thought begins and ends, token by token."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.unit.handlers.conftest import HANDLERS, load_module

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

ASKED = "<|im_start|>user\nIs <think> a word?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def thoughts() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HANDLERS / "chat"))
        yield load_module(HANDLERS / "chat" / "chat_thoughts.py")
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "special"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """A tokenizer with the marks, as special tokens or not: there are models of both kinds."""
    from tests.contracts.scripted_chat import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=request.param)
    return tokenizer


@pytest.mark.parametrize(
    ("prompt", "generated", "thought", "answer"),
    [
        (ASKED, "<think>\nLet me\nsee.\n</think>\n\nYes.", "Let me\nsee.", "\n\nYes."),
        (f"{ASKED}<think>\n", "Let me see. \n</think>Yes.", "Let me see.", "Yes."),
        (f"{ASKED}<think>\n", "<think>Let me</think>", "Let me", ""),
        (f"{ASKED}<think>\n\n</think>\n\n", "<think>", "", "<think>"),
        (ASKED, "Yes. <think>Let me</think>", "", "Yes. <think>Let me</think>"),
        (ASKED, "<think>Größe 👍 ", "Größe 👍", ""),
        (ASKED, "<think></think>Yes.", "", "Yes."),
    ],
)
def test_a_thought_and_an_answer(
    thoughts: ModuleType, tokenizer: Any, prompt: str, generated: str, thought: str, answer: str
) -> None:
    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return tokens

    found = thoughts.Thought(tokenizer, thoughts.marks_of(tokenizer), encode(prompt))
    parts, rest = [], []
    for token in encode(generated):
        part = found.take(token)
        if part is None:
            rest.append(token)
        else:
            assert not rest, "a thought comes first"
            parts.append(part)
    assert "".join([*parts, found.end()]) == found.text == thought
    assert tokenizer.decode(rest) == answer
    assert [*found.tokens, *rest] == encode(generated)


def test_a_model_without_the_marks_does_not_think(thoughts: ModuleType) -> None:
    from tests.contracts.scripted_chat import byte_tokenizer

    assert thoughts.marks_of(byte_tokenizer()) is None
