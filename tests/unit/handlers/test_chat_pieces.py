"""handlers/chat: a text in pieces has the tokens of the whole text, whatever the tokenizer does at its beginning."""

import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.unit.handlers.conftest import HANDLERS, load_module

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

START, END = "<|im_start|>", "<|im_end|>"
#: What texts of these tests consist of.
PARTS = (START, END, "<|eats|>", "<|word|>", "<|im_", " ", "\n", "user", "a", "b", "ä", "Ab a", "  a")


@pytest.fixture
def pieces() -> Iterator[ModuleType]:
    yield load_module(HANDLERS / "chat" / "chat_pieces.py")


def bytes_bpe() -> Any:
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = models.BPE({letter: number for number, letter in enumerate([*sorted(alphabet), "aa", "Ġa"])}, [("Ġ", "a")])
    return model, pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel(), None


def words_with_space(prepend: str) -> Any:
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    letters = "▁<|>_abäAuserimtndw\n"
    scores = [("<unk>", 0.0), *((letter, -2.0) for letter in dict.fromkeys(letters)), ("▁a", -1.0), ("ab", -1.0)]
    normalizer = normalizers.Lowercase()
    space = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    return models.Unigram(scores, 0, byte_fallback=False), space, decoders.Metaspace(), normalizer


def legacy() -> Any:
    """Return a tokenizer as Llama 2's, which puts a space before the text by a normalizer."""
    from tokenizers import normalizers

    model, _, decoder, _ = words_with_space("never")
    return model, None, decoder, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


@pytest.fixture(
    params=[bytes_bpe, lambda: words_with_space("first"), lambda: words_with_space("always"), legacy],
    ids=["bytes", "space-first", "space-always", "legacy"],
)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    from tokenizers import Tokenizer
    from transformers import AddedToken, PreTrainedTokenizerFast

    model, pre_tokenizer, decoder, normalizer = request.param()
    tokenizer = Tokenizer(model)
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder
    marks = [AddedToken("<|eats|>", lstrip=True, rstrip=True), AddedToken("<|word|>", single_word=True), START]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, additional_special_tokens=marks)


def test_they_have_the_tokens_of_the_whole(pieces: ModuleType, tokenizer: Any) -> None:
    chance, made = random.Random(0), pieces.Pieces(tokenizer, START + "<|eats|><|word|>")
    for _ in range(500):
        text = "".join(chance.choices(PARTS, k=chance.randrange(12)))
        assert made.encode(text) == tokenizer.encode(text, add_special_tokens=False), repr(text)


def test_a_longer_conversation_has_only_its_new_pieces_tokenized(
    pieces: ModuleType, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = list[str]()
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **how: encode(encoded.append(text) or text, **how))
    made = pieces.Pieces(tokenizer, START)
    turns = f"{START}user\na{END}\n", f"{START}a\nb{END}\n", f"{START}user\nb{END}\n"
    made.encode(turns[0])
    encoded.clear()
    made.encode("".join(turns))
    assert encoded == [f"{START}a\nb", f"{START}user\nb"]


def test_the_least_recently_used_are_forgotten(
    pieces: ModuleType, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_MOST_CHARACTERS", 3 * len(START) + 2)
    made = pieces.Pieces(tokenizer, START)
    for text in (f"{START}a{START}b", f"{START}a", f"{START}ä"):
        made.encode(text)
    assert list(made._kept) == [f"{START}a", f"{START}ä"]
