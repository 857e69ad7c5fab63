"""What a model thinks before it answers, between ``<think>`` and ``</think>``, apart from the answer itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from chat_text import Answer

_OPENS: Final = "<think>"
_CLOSES: Final = "</think>"
#: How many tokens at the end of a prompt can be the mark of a thought and the space behind it.
_END_OF_PROMPT: Final = 4


class Marks(NamedTuple):
    """The tokens before and behind a thought."""

    opens: int
    closes: int


def marks_of(tokenizer: Any) -> Marks | None:
    """Return the tokens around the thoughts of a model; None if its tokenizer, one of transformers, has none."""
    tokens = tokenizer.get_vocab()
    return Marks(tokens[_OPENS], tokens[_CLOSES]) if _OPENS in tokens and _CLOSES in tokens else None


class Thought:
    """What one answer begins with, if the model thinks: token by token, without space at its beginning and its end.

    Args:
        tokenizer: One of transformers.
        marks: The tokens around a thought.
        prompt: The tokens before the answer; the template may have begun the thought, or left it out.

    Attributes:
        tokens: Those of the answer that belong to the thought, its marks included.
        text: The thought, as far as it is certain.
        is_open: Whether the model is thinking.
        may_begin: Whether the next token may begin the thought.
    """

    def __init__(self, tokenizer: Any, marks: Marks, prompt: Sequence[int]) -> None:
        end = tokenizer.decode(prompt[-_END_OF_PROMPT:]).rstrip()
        self.is_open = end.endswith(_OPENS)
        self.may_begin = not end.endswith((_OPENS, _CLOSES))
        self.tokens: list[int] = []
        self.text = ""
        self.marks = marks
        self._answer = Answer(tokenizer, ())
        self._space = ""

    def take(self, token: int) -> str | None:
        """Take a token of the answer; return the text that it makes certain, None if it is not of the thought."""
        begins = self.may_begin and token == self.marks.opens
        self.may_begin = False
        if not (begins or self.is_open):
            return None
        self.tokens.append(token)
        self.is_open = token != self.marks.closes
        if token == self.marks.opens:
            return ""
        return self._said(self._answer.add(token)) if self.is_open else self.end()

    def end(self) -> str:
        """Return what was held back: no further token of the thought comes."""
        return self._said(self._answer.end())

    def _said(self, text: str) -> str:
        waiting = self._space + text
        said = waiting.rstrip()
        self._space = waiting[len(said) :]
        if not self.text:
            said = said.lstrip()
        self.text += said
        return said
