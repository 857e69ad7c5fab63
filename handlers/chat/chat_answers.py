"""How answers are written: as text, as JSON, and as OpenAI's completions, each whole or as a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from chat_sampling import TokenLogprobs
from chat_tools import CallPiece, CallReader, Format, Piece

_DONE: Final = "data: [DONE]\n\n"
_REPLACEMENT: Final = "\ufffd"


class Used(NamedTuple):
    """The tokens that answers took.

    Attributes:
        prompt: The tokens before the answer, those of earlier turns included.
        cached: How many of these did not have to be read again.
        tokens: The tokens of the answer, with the one that ended it.
        thought: How many of these the model has thought before it answered.
    """

    prompt: int
    cached: int
    tokens: int
    thought: int

    @property
    def usage(self) -> dict[str, Any]:
        """The same as OpenAI counts it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.thought},
        }


class Said(NamedTuple):
    """What a token has made certain of an answer.

    Attributes:
        thought: What the model thinks before it answers.
        text: The answer.
        logprobs: How likely the tokens of the answer were, since the last text.
        tokens: Those since the last text or thought.
    """

    thought: str
    text: str
    logprobs: list[TokenLogprobs]
    tokens: list[int]


class Outcome(NamedTuple):
    """An answer that is complete.

    Attributes:
        thought: What the model has thought before.
        text: All of it.
        reason: "stop" if the model or a stop string ended it, "length" if a limit did.
        used: The tokens that it took.
        logprobs: How likely its tokens were, if that was asked for.
    """

    thought: str
    text: str
    reason: str
    used: Used
    logprobs: list[TokenLogprobs]


class Form(Protocol):
    """How the answers to one request are written; ``place`` is the number of an answer among them.

    Attributes:
        content_type: Of the whole answer, and of a stream.
    """

    content_type: str

    def part(self, place: int, said: Said, used: Used) -> str | None:
        """Return what a stream sends for further text; None if that is nothing."""
        ...

    def last(self, place: int, said: Said, outcome: Outcome) -> str:
        """Return what a stream sends when an answer is complete; ``said`` is the rest of it."""
        ...

    def end(self, used: Used) -> str:
        """Return what a stream ends with."""
        ...

    def whole(self, outcomes: Sequence[Outcome], used: Used) -> Any:
        """Return the answers if they are not a stream."""
        ...


class TextForm:
    """The text and nothing else; a thought is not part of it."""

    content_type = "text/plain; charset=utf-8"

    def part(self, place: int, said: Said, used: Used) -> str | None:
        return said.text or None

    def last(self, place: int, said: Said, outcome: Outcome) -> str:
        return said.text

    def end(self, used: Used) -> str:
        return ""

    def whole(self, outcomes: Sequence[Outcome], used: Used) -> Any:
        return outcomes[0].text


class JsonForm(TextForm):
    """An object with the text, the thought before it, why it ended, and what was used; a stream is the text."""

    def __init__(self, *, streams: bool) -> None:
        if not streams:
            self.content_type = "application/json"

    def whole(self, outcomes: Sequence[Outcome], used: Used) -> dict[str, Any]:
        (outcome,) = outcomes
        thought = {"reasoning": outcome.thought} if outcome.thought else {}
        return {"text": outcome.text, **thought, "finish_reason": outcome.reason, "usage": used.usage}


class _EventsForm:
    """What the forms of OpenAI's have in common.

    Args:
        model: The name under which the client asked for the model.
        token_text: Returns the text of a token.
        streams: Whether the answers are sent as server-sent events.
        counts_usage: Whether a stream ends with what was used.
        counts_always: Whether each event has what its answer has used so far.
    """

    id_prefix: str
    whole_object: str
    part_object: str

    def __init__(
        self,
        model: str,
        token_text: Callable[[int], str],
        *,
        streams: bool,
        counts_usage: bool,
        counts_always: bool,
    ) -> None:
        self.content_type = "text/event-stream" if streams else "application/json"
        self._token_text = token_text
        self._counts_usage, self._counts_always = counts_usage, counts_always
        self._head = {"id": f"{self.id_prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def end(self, used: Used) -> str:
        return (self._event([], used) if self._counts_usage else "") + _DONE

    def _event(self, choices: list[dict[str, Any]], used: Used | None) -> str:
        has_usage = self._counts_usage or self._counts_always
        counts = not choices or self._counts_always
        usage = {"usage": used.usage if counts and used is not None else None} if has_usage else {}
        return f"data: {json.dumps(self._head | {'object': self.part_object, 'choices': choices} | usage)}\n\n"

    def _whole(self, choices: list[dict[str, Any]], used: Used) -> dict[str, Any]:
        return self._head | {"object": self.whole_object, "choices": choices, "usage": used.usage}


class ChatForm(_EventsForm):
    """OpenAI's chat completions."""

    id_prefix, whole_object, part_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        *args: Any,
        format_: Format | None = None,
        most_calls: int | None = None,
        shows_thoughts: bool = True,
        returns_tokens: bool = False,
        **options: bool,
    ) -> None:
        """Begin the answers.

        Args:
            args: As for all forms.
            format_: How the model writes calls; None if it is not to write any.
            most_calls: How many of them an answer has at most.
            shows_thoughts: Whether the answers have what the model thinks before.
            returns_tokens: Whether a stream has ``token_ids``.
            options: As for all forms.
        """
        super().__init__(*args, **options)
        self._shows_thoughts = shows_thoughts
        self._format, self._most_calls = format_, most_calls
        self._returns_tokens = returns_tokens
        self._readers: dict[int, CallReader] = {}
        self._calling: set[int] = set()
        self._begun: set[int] = set()

    def part(self, place: int, said: Said, used: Used) -> str | None:
        if not said.thought and not said.text and not said.logprobs and place in self._begun:
            return None
        return self._events(place, self._pieces(place, said.text), said, used) or None

    def last(self, place: int, said: Said, outcome: Outcome) -> str:
        pieces = self._pieces(place, said.text, is_last=True)
        events = self._events(place, pieces, said, outcome.used)
        return events + self._event([self._choice(place, {}, reason=self._reason(place, outcome))], outcome.used)

    def whole(self, outcomes: Sequence[Outcome], used: Used) -> dict[str, Any]:
        choices = []
        for place, outcome in enumerate(outcomes):
            content, calls = _joined(self._pieces(place, outcome.text, is_last=True))
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            message |= self._thought(outcome.thought)
            if (calls or outcome.thought) and not content.strip():
                message["content"] = None
            if calls and self._format is not None:
                message["tool_calls"] = [
                    {
                        "id": self._format.new_id(),
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }
                    for name, arguments in calls
                ]
            choices.append(
                {
                    "index": place,
                    "message": message,
                    "logprobs": self._logprobs(outcome.logprobs),
                    "finish_reason": self._reason(place, outcome),
                }
            )
        return self._whole(choices, used)

    def _pieces(self, place: int, text: str, *, is_last: bool = False) -> list[Piece]:
        if self._format is None:
            return [text] if text else []
        reader = self._readers.setdefault(place, CallReader(self._format, self._most_calls))
        pieces = reader.add(text) + (reader.end() if is_last else [])
        if any(isinstance(piece, CallPiece) for piece in pieces):
            self._calling.add(place)
        return pieces

    def _events(self, place: int, pieces: list[Piece], said: Said, used: Used) -> str:
        deltas: list[dict[str, Any]] = [thought] if (thought := self._thought(said.thought)) else []
        for piece in pieces:
            if isinstance(piece, str):
                deltas.append({"content": piece})
            elif piece.name is None and deltas and (last := deltas[-1].get("tool_calls")):
                last[0]["function"]["arguments"] += piece.arguments  # of the same call: each begins with its name
            else:
                deltas.append({"tool_calls": [self._call_delta(piece)]})
        if place not in self._begun:
            self._begun.add(place)
            first = deltas[0] if deltas else {"content": ""}
            deltas[:1] = [{"role": "assistant"} | first]
        elif not deltas and (said.logprobs or (said.tokens and self._returns_tokens)):
            deltas = [{"content": ""}]
        choices = [self._choice(place, delta) for delta in deltas]
        if choices:
            choices[0]["logprobs"] = self._logprobs(said.logprobs)
            if self._returns_tokens:
                choices[0]["token_ids"] = said.tokens
        return "".join(self._event([choice], used) for choice in choices)

    def _thought(self, thought: str) -> dict[str, Any]:
        """Return what a message has of a thought: under vLLM's name, and the one that it had before."""
        return {"reasoning": thought, "reasoning_content": thought} if thought and self._shows_thoughts else {}

    def _call_delta(self, piece: CallPiece) -> dict[str, Any]:
        assert self._format is not None, "only models with a format call tools"
        if piece.name is None:
            return {"index": piece.place, "function": {"arguments": piece.arguments}}
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"index": piece.place, "id": self._format.new_id(), "type": "function", "function": function}

    def _choice(self, place: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": place, "delta": delta, "logprobs": None, "finish_reason": reason}

    def _reason(self, place: int, outcome: Outcome) -> str:
        return "tool_calls" if outcome.reason == "stop" and place in self._calling else outcome.reason

    def _logprobs(self, tokens: list[TokenLogprobs]) -> dict[str, Any] | None:
        if not tokens:
            return None
        content = [
            self._likely(each.token, each.logprob)
            | {"top_logprobs": [self._likely(token, logprob) for token, logprob in each.top]}
            for each in tokens
        ]
        return {"content": content, "refusal": None}

    def _likely(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token)
        # A token can be a part of a character, which has no text.
        octets = None if _REPLACEMENT in text else list(text.encode())
        return {"token": text, "logprob": _finite(logprob), "bytes": octets}


class CompletionForm(_EventsForm):
    """OpenAI's completions of prompts."""

    id_prefix, whole_object, part_object = "cmpl", "text_completion", "text_completion"

    def part(self, place: int, said: Said, used: Used) -> str | None:
        return self._event([self._choice(place, said.text, said.logprobs)], used) if said.text else None

    def last(self, place: int, said: Said, outcome: Outcome) -> str:
        return self._event([self._choice(place, said.text, said.logprobs, outcome.reason)], outcome.used)

    def whole(self, outcomes: Sequence[Outcome], used: Used) -> dict[str, Any]:
        choices = [
            self._choice(place, outcome.text, outcome.logprobs, outcome.reason)
            for place, outcome in enumerate(outcomes)
        ]
        return self._whole(choices, used)

    def _choice(self, place: int, text: str, tokens: list[TokenLogprobs], reason: str | None = None) -> dict[str, Any]:
        return {"index": place, "text": text, "logprobs": self._logprobs(tokens), "finish_reason": reason}

    def _logprobs(self, tokens: list[TokenLogprobs]) -> dict[str, Any] | None:
        if not tokens:
            return None
        texts = [self._token_text(each.token) for each in tokens]
        tops: list[Mapping[str, float]] = [
            {self._token_text(token): _finite(logprob) for token, logprob in each.top} for each in tokens
        ]
        offsets = [sum(map(len, texts[:place])) for place in range(len(texts))]
        logprobs = [_finite(each.logprob) for each in tokens]
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _finite(logprob: float) -> float:
    """Return a value that JSON has; OpenAI's API gives -9999 for what is impossible."""
    return max(logprob, -9999.0)


def _joined(pieces: list[Piece]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of an answer, and the names and arguments of its calls."""
    calls: dict[int, tuple[str, str]] = {}
    for piece in pieces:
        if isinstance(piece, CallPiece):
            name, arguments = calls.get(piece.place, (piece.name or "", ""))
            calls[piece.place] = (name, arguments + piece.arguments)
    return "".join(piece for piece in pieces if isinstance(piece, str)), list(calls.values())
