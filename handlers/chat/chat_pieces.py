"""`Pieces`: the tokens of a long text of which nearly all was a part of earlier ones.

A text is cut where special tokens begin. The tokenizer cuts it there before it does anything else, so the tokens of a
piece depend on nothing before it, and those of pieces that were seen before are kept.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Any, Final

_FOUR_BYTES: Final = "I"  # an unsigned integer of an array
#: How many characters the pieces have whose tokens are kept.
_MOST_CHARACTERS: Final = 16 << 20


class Pieces:
    """Tokens of the latest pieces.

    Args:
        tokenizer: One of transformers.
        template: Texts are cut at the special tokens in it, and where the conversation or the model's answer ends.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._tokenizer = tokenizer
        is_fast = getattr(tokenizer, "is_fast", False)
        added = {each.content: each for each in tokenizer.added_tokens_decoder.values()} if is_fast else {}
        #: Where texts are cut: other tokens depend on the characters before them.
        self._marks = [
            text
            for text, token in added.items()
            if (text in template or text == tokenizer.eos_token)
            and not (token.lstrip or token.single_word or token.normalized)
            and sum(text in other for other in added) == 1
        ]
        #: The least recently used first.
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without those of the beginning of a text."""
        tokens = array(_FOUR_BYTES)
        places = self._places(text)
        for begin, end in zip(places, [*places[1:], len(text)], strict=True):
            tokens += self._tokens(text[begin:end])
        return tokens.tolist()

    def _places(self, text: str) -> list[int]:
        places = {0}
        for mark in self._marks:
            place = text.find(mark)
            while place >= 0:
                places.add(place)
                place = text.find(mark, place + len(mark))
        return sorted(places)

    def _tokens(self, piece: str) -> array[int]:
        kept = self._kept.get(piece)
        if kept is not None:
            self._kept.move_to_end(piece)
            return kept
        tokens = array(_FOUR_BYTES, self._tokenizer.encode(piece, add_special_tokens=False))
        self._kept[piece] = tokens
        self._characters += len(piece)
        while self._characters > _MOST_CHARACTERS:
            self._characters -= len(self._kept.popitem(last=False)[0])
        return tokens
