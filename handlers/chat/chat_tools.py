"""Tool calls in the text of a model: the formats of common models, read from an answer while it is generated."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from chat_text import beginning

_SPACE: Final = " \t\r\n"
_SEPARATORS: Final = ",;[]"
_ARGUMENTS: Final = ("arguments", "parameters")
#: Keys with which the object of a call begins.
_FIRST_KEYS: Final = ("name", "type", "id", *_ARGUMENTS)
_PYTHON_TAG: Final = "<|python_tag|>"


class Format(NamedTuple):
    """How a model writes calls.

    Attributes:
        name: Of the models.
        opens: The text before a call, or before a list of calls; empty if an answer that is a JSON object is a call.
        closes: The text behind a call, or empty.
        arguments: The key of the arguments; empty if the name stands before them, as in ``name[ARGS]{...}``.
        marks: Texts that may be special tokens, which have to stay in the text.
        begins, again, ends: What stands around the calls in a grammar, behind ``opens``.
    """

    name: str
    opens: str
    closes: str
    arguments: str
    marks: tuple[str, ...]
    begins: str
    again: str
    ends: str

    def new_id(self) -> str:
        """Return an id for a call; the templates of Mistral take only nine letters and digits."""
        return secrets.token_hex(5)[:9] if self.opens == MISTRAL.opens else f"call_{secrets.token_hex(12)}"


HERMES: Final = Format(
    "Hermes and Qwen",
    "<tool_call>",
    "</tool_call>",
    "arguments",
    ("<tool_call>", "</tool_call>"),
    "\n{",
    "",
    "}\n</tool_call>",
)
LLAMA: Final = Format("Llama 3", "", "", "parameters", (_PYTHON_TAG,), "{", "}; {", "}")
MISTRAL: Final = Format("Mistral", "[TOOL_CALLS]", "", "arguments", ("[TOOL_CALLS]",), "[{", "}, {", "}]")
MISTRAL_ARGS: Final = MISTRAL._replace(
    arguments="", marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), begins="", again="", ends=""
)


def format_of(template: str) -> Format | None:
    """Return the format in which the model of a chat template writes calls; None if it has none that is known."""
    if "tools" not in template or "<function=" in template:
        return None
    if HERMES.opens in template:
        return HERMES
    if MISTRAL.opens in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    return LLAMA if '"parameters"' in template or _PYTHON_TAG in template else None


class CallPiece(NamedTuple):
    """A part of a call.

    Attributes:
        place: Of the call among those of the answer, from 0.
        name: Of the tool, with the first part of a call only.
        arguments: Further characters of its arguments, which are JSON.
    """

    place: int
    name: str | None
    arguments: str


#: A part of an answer: text for the reader, or a part of a call.
Piece: TypeAlias = str | CallPiece


class CallReader:
    """Finds the calls in an answer that comes in parts. What is not a call stays text.

    Args:
        format_: How the model writes calls.
        most: How many calls the answer may have; None for any number. Further ones are dropped.
    """

    def __init__(self, format_: Format, most: int | None = None) -> None:
        self._format = format_
        self._most = most
        self._waiting = ""
        self._count = 0
        self._call: _Call | None = None
        self._state: Callable[[list[Piece]], bool] = self._outside if format_.opens else self._at_start

    def add(self, text: str) -> list[Piece]:
        """Return the pieces that further text makes certain."""
        self._waiting += text
        pieces: list[Piece] = []
        while self._waiting and self._state(pieces):
            pass
        return pieces

    def end(self) -> list[Piece]:
        """Return what was held back: no further text comes."""
        rest, self._waiting = self._waiting, ""
        if self._call is not None and not self._call.has_begun:
            rest = self._call.raw + rest
        self._call = None
        if self._state == self._between:
            rest = rest.strip(_SPACE + _SEPARATORS)
        return [rest] if rest else []

    # Each state takes something of the waiting text; it returns False if more text is needed.

    def _at_start(self, pieces: list[Piece]) -> bool:
        """An answer in the format of Llama is either calls or text."""
        text = self._waiting.lstrip(_SPACE).removeprefix(_PYTHON_TAG).lstrip(_SPACE)
        if not text or _PYTHON_TAG.startswith(text):
            return False
        self._state = self._between if text[0] == "{" else self._only_text
        if text[0] == "{":
            self._waiting = text
        return True

    def _only_text(self, pieces: list[Piece]) -> bool:
        pieces.append(self._waiting)
        self._waiting = ""
        return False

    def _outside(self, pieces: list[Piece]) -> bool:
        mark = self._format.opens
        before, found, behind = self._waiting.partition(mark)
        if not found:
            held = beginning(before, mark)
            before, behind = before[: len(before) - held], before[len(before) - held :]
        if before:
            pieces.append(before)
        self._waiting = behind
        self._state = self._between if found else self._outside
        return bool(found)

    def _behind(self, pieces: list[Piece]) -> bool:
        """Space behind a call is no text."""
        self._waiting = self._waiting.lstrip(_SPACE)
        self._state = self._outside if self._waiting else self._behind
        return bool(self._waiting)

    def _between(self, pieces: list[Piece]) -> bool:
        """Between the mark and a call, or between two calls."""
        text = self._waiting = self._waiting.lstrip(_SPACE)
        closes, opens = self._format.closes, self._format.opens
        if not text:
            return False
        for mark in filter(None, (closes, opens)):
            if text.startswith(mark):
                self._waiting = text[len(mark) :]
                self._state = self._behind if mark == closes else self._between
                return True
            if mark.startswith(text):
                return False
        if text[0] in _SEPARATORS:
            self._waiting = text[1:]
        elif text[0] == "{":
            self._begin(_Call(needs_arguments=not opens))
        elif self._format.arguments:
            self._state = self._outside if opens else self._only_text
        elif (place := text.find("{")) < 0:
            return False
        else:
            self._begin(_Call(text[:place].partition("[")[0].strip(_SPACE)))
            self._waiting = text[place:]
        return True

    def _begin(self, call: _Call) -> None:
        self._call = call
        self._state = self._in_call

    def _in_call(self, pieces: list[Piece]) -> bool:
        call = self._call
        assert call is not None, "a call has begun"
        for place, char in enumerate(self._waiting):
            had_begun = call.has_begun
            arguments = call.feed(char)
            if call.has_begun and (arguments or not had_begun) and not self._is_full:
                pieces.append(CallPiece(self._count, None if had_begun else call.name, arguments))
            if call.is_over or call.is_none:
                self._waiting = self._waiting[place + 1 :]
                self._finish(call, pieces)
                return True
        self._waiting = ""
        return False

    def _finish(self, call: _Call, pieces: list[Piece]) -> None:
        self._call = None
        self._state = self._between
        if call.has_begun:
            self._count += 1
            return
        pieces.append(call.raw)
        self._state = self._outside if self._format.opens else self._only_text

    @property
    def _is_full(self) -> bool:
        return self._most is not None and self._count >= self._most


class _Call:
    """The object of one call, character by character; or only its arguments, if the name stood before them.

    Args:
        name: The name that stood before.
        needs_arguments: Whether an object without arguments is no call.

    Attributes:
        name: Of the tool, once it is known.
        has_begun: Whether this is certainly a call, so that its parts can be sent.
        is_over: Whether the object is complete.
        is_none: Whether it is another object than a call.
        raw: The text so far.
    """

    def __init__(self, name: str | None = None, *, needs_arguments: bool = False) -> None:
        self.name = name
        self._needs_arguments = needs_arguments
        self.raw = ""
        self.has_begun = self.is_over = self.is_none = False
        self._has_only_arguments = name is not None
        self._depth = 1 if self._has_only_arguments else 0
        self._key: str | None = _ARGUMENTS[0] if self._has_only_arguments else None
        self._value: list[str] = []
        self._arguments: str | None = None
        self._in_text = self._is_escaped = False

    def feed(self, char: str) -> str:
        """Take a character; return what it adds to the arguments that can be sent."""
        if not self.has_begun:
            self.raw += char
        before, was_text = self._depth, self._in_text
        self._scan(char)
        if self._has_only_arguments and self._depth == 1 and before == 2:
            self.is_over = True
            return self._stream(char)
        if before == 0:
            return ""
        if before == 1 and not was_text:
            if char == ":" and self._key is None:
                self._take_key()
                return ""
            if char == "," or self._depth == 0:
                return self._take_value(is_last=self._depth == 0)
        if self._key in _ARGUMENTS and self.name is not None and (self._depth > 1 or before > 1) and self._is_object:
            return self._stream(char)
        self._value.append(char)
        return ""

    @property
    def _is_object(self) -> bool:
        """Whether the value that has begun is an object: others are sent once they are whole."""
        return self.has_begun or (not "".join(self._value).strip(_SPACE) and self.raw.endswith("{"))

    def _stream(self, char: str) -> str:
        self.has_begun = True
        self._value.clear()
        return char

    def _scan(self, char: str) -> None:
        if self._in_text:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_text = False
        elif char == '"':
            self._in_text = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    def _take_key(self) -> None:
        self._key = "".join(self._value).strip(_SPACE).strip('"')
        self._value.clear()
        if self.name is None and self._arguments is None:
            self.is_none = self._key not in _FIRST_KEYS

    def _take_value(self, *, is_last: bool) -> str:
        """Take the value that has ended; return the arguments if they can be sent now."""
        text, key = "".join(self._value).strip(_SPACE), self._key
        self._key = None
        self._value.clear()
        if key == "name":
            value = _value(text)
            self.name = value if isinstance(value, str) and value else None
        elif key in _ARGUMENTS and not self.has_begun:
            value = _value(text)
            self._arguments = value if isinstance(value, str) else "{}" if value is None else text
        self.is_over = is_last
        if not is_last or self.has_begun or self.name is None or (self._needs_arguments and self._arguments is None):
            return ""
        self.has_begun = True
        return "{}" if self._arguments is None else self._arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
