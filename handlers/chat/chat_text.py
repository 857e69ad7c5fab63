"""Words to tokens and back: the prompt of a turn, and the text of an answer while it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Stands for an answer in a conversation that is rendered to see what the template puts behind answers.
_ANSWER: Final = "7f3aANSWERc91e"
_QUESTION: Final = "question"
#: What tokenizers make of the bytes of a character that is not whole yet.
_INCOMPLETE: Final = "\ufffd"


class ChatText:
    """Makes prompts with a tokenizer's template; without one, texts follow each other as they are.

    Args:
        tokenizer: One of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.has_template = bool(tokenizer.chat_template)

    def prompt(self, messages: Sequence[Mapping[str, str]], *, continues: bool) -> list[int]:
        """Return the tokens of messages, up to where the answer begins.

        Args:
            messages: Dicts with ``role`` and ``content``.
            continues: Whether they follow an answer of the model: then only the tokens behind that are returned.

        Raises ValueError: the template refuses the messages, or a text is not Unicode.
        """
        for message in messages:
            message["content"].encode()
        if not self.has_template:
            text = "".join(message["content"] for message in messages)
            return self.encode(text, is_start=not continues)
        if not continues:
            return self.encode(self._render(messages))
        before = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        return self.encode(self._render([*before, *messages]).rpartition(_ANSWER)[2])

    def encode(self, text: str, *, is_start: bool = False) -> list[int]:
        """Return the tokens of a text; with those of the beginning of a text if it is one."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=is_start)
        return tokens

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(map(dict, messages)), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates are programs, which raise errors of their own for what they do not know
            raise ValueError(f"The model's template refuses these messages: {error}.") from error
        return text


class Answer:
    """The text of an answer, token by token.

    Attributes:
        tokens: What the model has said.
        text: Its text, as far as it is certain and no stop string can begin in it.
        is_stopped: Whether a stop string has come; the text ends before it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self.tokens: list[int] = []
        self.text = ""
        self.is_stopped = False
        #: The text that is held back since a stop string may begin in it.
        self._held = ""
        #: The tokens from here on are decoded again with the next one, since the text of a token depends on those
        #: before it; those up to ``_known`` have given their text.
        self._from = self._known = 0

    def add(self, token: int) -> str:
        """Add a token; return the text that it makes certain."""
        self.tokens.append(token)
        before = self._decode(self.tokens[self._from : self._known])
        now = self._decode(self.tokens[self._from :])
        if now.endswith(_INCOMPLETE):
            return ""
        self._from, self._known = self._known, len(self.tokens)
        return self._release(now[len(before) :])

    def end(self) -> str:
        """Return what was held back: no further token comes."""
        if self.is_stopped:
            return ""
        before = self._decode(self.tokens[self._from : self._known])
        rest = self._held + self._decode(self.tokens[self._from :])[len(before) :]
        self._held = ""
        self._from = self._known = len(self.tokens)
        self.text += rest
        return rest

    def encoded_text(self) -> list[int]:
        """Return the tokens of the text, which a stop string may have cut within one."""
        tokens: list[int] = self._tokenizer.encode(self.text, add_special_tokens=False)
        return tokens

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _release(self, new: str) -> str:
        waiting = self._held + new
        places = [place for stop in self._stops if (place := waiting.find(stop)) >= 0]
        if places:
            self.is_stopped = True
            self._held, released = "", waiting[: min(places)]
        else:
            held = max((_beginning(waiting, stop) for stop in self._stops), default=0)
            released, self._held = waiting[: len(waiting) - held], waiting[len(waiting) - held :]
        self.text += released
        return released


def _beginning(text: str, stop: str) -> int:
    """Return how many characters at the end of a text a stop string may begin with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
