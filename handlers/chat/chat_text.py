"""Words to tokens and back: the prompt of a turn, and the text of an answer while it grows."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from chat_fields import BadRequest
from chat_messages import Message
from chat_pieces import Pieces

from ts.handler_utils.openai_fields import log_ignored

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
        self._pieces = Pieces(tokenizer, self.template() + self.template(tools=True))

    def template(self, tools: bool = False) -> str:
        """Return the template of a conversation, with tools if so; some models have one of its own for these."""
        if not self.has_template:
            return ""
        text: str = self.tokenizer.get_chat_template(tools=[{}] if tools else None)
        return text

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        continues: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of messages, up to where the answer begins.

        Args:
            messages: Dicts with ``role`` and ``content``.
            continues: Whether they follow an answer of the model: then only the tokens behind that are returned.
            tools: The functions that the template shows.
            values: Further variables of the template.

        Raises ValueError: the template refuses the messages, or a text is not Unicode.
        """
        values = dict(values or {})
        if not self.has_template:
            text = "".join(message["content"] for message in messages)
            text.encode()
            return self.encode(text, is_start=not continues)
        self._check(values)
        if tools:
            values["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
        if not continues:
            return self._pieces.encode(self._render(messages, values))
        before = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
        return self.encode(self._render([*before, *messages], values).rpartition(_ANSWER)[2])

    def _check(self, values: dict[str, Any]) -> None:
        """Drop the values that the template does not read. Raises BadRequest: a name has another meaning."""
        reserved = inspect.signature(self.tokenizer.apply_chat_template).parameters
        for name in list(values):
            if name in reserved or name == "messages":
                raise BadRequest(f"chat_template_kwargs cannot set {name!r}.", "chat_template_kwargs")
            if name not in self.template():
                del values[name]
                log_ignored(name)

    def token_text(self, token: int) -> str:
        """Return the text of one token."""
        text: str = self.tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str, *, is_start: bool = False) -> list[int]:
        """Return the tokens of a text; with those of the beginning of a text if it is one.

        Raises UnicodeEncodeError: it has half of a surrogate pair.
        """
        text.encode()
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=is_start)
        return tokens

    def _render(self, messages: Sequence[Message], values: Mapping[str, Any]) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(map(dict, messages)), tokenize=False, add_generation_prompt=True, **values
            )
        except Exception as error:  # templates are programs, which raise errors of their own for what they do not know
            raise ValueError(f"The model's template refuses these messages: {error}.") from error
        text.encode()
        return text


class Answer:
    """The text of an answer, token by token.

    Args:
        tokenizer: One of transformers.
        stops: The text ends before one of these.
        marks: The special tokens that stay in the text; others are no part of it.

    Attributes:
        skips_space: Whether space with which the text begins is no part of it.
        tokens: What the model has said.
        text: Its text, as far as it is certain and no stop string can begin in it.
        is_stopped: Whether a stop string has come; the text ends before it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], marks: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        specials = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True) if marks else ()
        self._hidden = {token for text, token in specials if text not in marks}
        self._has_marks = bool(marks)
        self._stops = stops
        self.tokens: list[int] = []
        self.text = ""
        self.skips_space = False
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
        return self._said(rest)

    def encoded_text(self) -> list[int]:
        """Return the tokens of the text, which a stop string may have cut within one."""
        tokens: list[int] = self._tokenizer.encode(self.text, add_special_tokens=False)
        return tokens

    def _decode(self, tokens: list[int]) -> str:
        if self._has_marks:
            tokens = [token for token in tokens if token not in self._hidden]
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=not self._has_marks, clean_up_tokenization_spaces=False
        )
        return text

    def _release(self, new: str) -> str:
        waiting = self._held + new
        places = [place for stop in self._stops if (place := waiting.find(stop)) >= 0]
        if places:
            self.is_stopped = True
            self._held, released = "", waiting[: min(places)]
        else:
            held = max((beginning(waiting, stop) for stop in self._stops), default=0)
            released, self._held = waiting[: len(waiting) - held], waiting[len(waiting) - held :]
        return self._said(released)

    def _said(self, text: str) -> str:
        if self.skips_space and not self.text:
            text = text.lstrip()
        self.text += text
        return text


def beginning(text: str, stop: str) -> int:
    """Return how many characters at the end of a text a stop string may begin with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
