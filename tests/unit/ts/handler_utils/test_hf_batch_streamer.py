"""Text that a Hugging Face model generates for several rows at once."""

import queue
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

WORDS = ["<end>", "hello", "good", "world", "day", "prompt"]


class Tokenizer:
    """Every token is a word."""

    def decode(self, tokens: Any, skip_special_tokens: bool = False, **more: Any) -> str:
        words = [WORDS[token] for token in tokens]
        return " ".join(word for word in words if not (skip_special_tokens and word.startswith("<")))


@pytest.fixture
def streamer() -> Callable[..., Any]:
    from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch

    return lambda *args, **kwargs: TextIteratorStreamerBatch(Tokenizer(), *args, skip_special_tokens=True, **kwargs)


def joined(parts: Any) -> list[str]:
    texts = ["", ""]
    for part in parts:
        texts = [text + more["text"] for text, more in zip(texts, part, strict=True)]
    return texts


def test_each_row_gets_its_text_and_the_streamer_can_be_used_again(streamer: Callable[..., Any]) -> None:
    both = streamer(2)

    for _ in range(2):
        both.put(torch.tensor([1, 2]))
        both.put(torch.tensor([3, 4]))
        both.put(torch.tensor([0, 0]))
        both.end()
        assert joined(both) == ["hello world", "good day"]


def test_the_prompt_can_be_left_out(streamer: Callable[..., Any]) -> None:
    both = streamer(2, skip_prompt=True)
    both.put(torch.tensor([[5, 5], [5, 5]]))
    both.put(torch.tensor([1, 2]))
    both.end()

    assert joined(both) == ["hello", "good"]


def test_another_number_of_rows_is_refused(streamer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"the batch size is 2 but the tokens have the shape \[3\]"):
        streamer(2).put(torch.tensor([1, 2, 3]))


def test_waiting_has_an_end(streamer: Callable[..., Any]) -> None:
    with pytest.raises(queue.Empty):
        next(streamer(2, timeout=0.01))


def test_a_model_of_transformers_streams_into_it(streamer: Callable[..., Any]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=6, n_positions=16, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    both = streamer(2)
    prompt = torch.tensor([[1, 3], [2, 4]])

    tokens = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False, pad_token_id=0, streamer=both
    )

    tokenizer = Tokenizer()
    assert joined(both) == [tokenizer.decode(row, skip_special_tokens=True) for row in tokens.tolist()]


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ts.handler_utils.hf_batch_streamer", raising=False)
    monkeypatch.setitem(sys.modules, "transformers.generation.streamers", None)
    monkeypatch.setitem(sys.modules, "transformers.generation", None)

    with pytest.raises(ModuleNotFoundError, match=r"need the package transformers.*torchserve-py\[huggingface\]"):
        import ts.handler_utils.hf_batch_streamer  # noqa: F401
