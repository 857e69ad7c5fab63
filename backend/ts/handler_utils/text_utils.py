"""Cutting English text into tokens and tokens into n-grams; same results as torchtext's functions of these names."""

import re
from collections.abc import Callable, Iterator, Sequence

#: Punctuation marks that become tokens, and characters that are dropped or become blanks.
_SPACED = re.compile(r"['.,()!?]")
_DROPPED = str.maketrans({'"': "", ";": " ", ":": " "})


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yield the tokens, then every two neighbours joined by a space, and so on up to ``ngrams`` neighbours."""
    yield from token_list
    for length in range(2, ngrams + 1):
        for start in range(len(token_list) - length + 1):
            yield " ".join(token_list[start : start + length])


def get_tokenizer(
    tokenizer: str | Callable[[str], list[str]] | None, language: str = "en"
) -> Callable[[str], list[str]]:
    """Return a function from a text to its tokens.

    ``tokenizer`` is "basic_english" (lower case, punctuation marks are tokens), a function, or None to cut at white
    space. Raises ValueError: the tokenizer is unknown, or does not support the language.
    """
    if tokenizer is None:
        return str.split
    if callable(tokenizer):
        return tokenizer
    if tokenizer != "basic_english":
        raise ValueError(f"there is no tokenizer {tokenizer!r}; known are 'basic_english', None or a function")
    if language != "en":
        raise ValueError(f"the tokenizer 'basic_english' knows the language 'en', not {language!r}")
    return _basic_english


def _basic_english(text: str) -> list[str]:
    text = text.lower().translate(_DROPPED).replace("<br />", " ")
    return _SPACED.sub(r" \g<0> ", text).split()
