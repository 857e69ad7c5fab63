"""Tokens and n-grams."""

import pytest

from ts.handler_utils.text_utils import get_tokenizer, ngrams_iterator


@pytest.mark.parametrize(
    ("ngrams", "expected"),
    [
        (1, ["here", "we", "are"]),
        (2, ["here", "we", "are", "here we", "we are"]),
        (3, ["here", "we", "are", "here we", "we are", "here we are"]),
        (4, ["here", "we", "are", "here we", "we are", "here we are"]),
    ],
)
def test_neighbouring_tokens_follow_the_single_ones(ngrams: int, expected: list[str]) -> None:
    assert list(ngrams_iterator(["here", "we", "are"], ngrams)) == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("You can now install TorchText using pip!", "you can now install torchtext using pip !"),
        ('it\'s (not) 3.14, "is" it?<br />No;yes:no', "it ' s ( not ) 3 . 14 , is it ? no yes no"),
        ("a<BR />b\n\tc", "a b c"),
        ("", ""),
    ],
)
def test_basic_english_makes_punctuation_tokens_of_their_own(text: str, tokens: str) -> None:
    assert get_tokenizer("basic_english")(text) == tokens.split()


def test_other_tokenizers() -> None:
    assert get_tokenizer(None)("A b,  C") == ["A", "b,", "C"]
    assert get_tokenizer(list)("ab") == ["a", "b"]
    with pytest.raises(ValueError, match="no tokenizer 'spacy'"):
        get_tokenizer("spacy")
    with pytest.raises(ValueError, match="'en', not 'de'"):
        get_tokenizer("basic_english", "de")
