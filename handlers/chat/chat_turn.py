"""A turn: one request while it is answered, and the entry of its conversation's log that it becomes."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from chat_answers import Form, Outcome
from chat_decoder import Reading
from chat_requests import Options
from chat_text import Answer

_FOUR_BYTES: Final = "I"  # an unsigned integer of an array


class Entry(NamedTuple):
    """What one turn has added to a conversation.

    Attributes:
        tokens: Of what was asked and answered, each four bytes, little-endian.
        seed: Of what is drawn.
        draws: How many tokens the conversation has drawn with this seed.
    """

    tokens: bytes
    seed: int
    draws: int


#: A conversation's state: an `Entry` for each turn, as plain tuples.
Log = Sequence[Sequence[Any]]


def tokens_of(log: Log) -> list[int]:
    """Return all tokens of a conversation."""
    tokens = array(_FOUR_BYTES)
    for entry in log:
        tokens.frombytes(Entry(*entry).tokens)
    return tokens.tolist()


class Turn:
    """A request that is being answered.

    Attributes:
        reading: All tokens of the conversation, and what the model has read of them.
        sequence_id: Its sequence, if its log is kept; None for a request that carries its own history.
        log: The conversation before it.
        form: How the answer is written.
        outcome: The answer, once it is complete.
        has_sent: Whether a part of the answer was sent.
    """

    def __init__(
        self,
        log: Log,
        prompt: list[int],
        options: Options,
        form: Form,
        answer: Answer,
        seed: int,
        sequence_id: str | None,
    ) -> None:
        self.log = log
        self.reading = Reading([*tokens_of(log), *prompt])
        self.options = options
        self.form = form
        self.sequence_id = sequence_id
        self.outcome: Outcome | None = None
        self.has_sent = False
        self._prompt = prompt
        self._before = len(self.reading.tokens)
        self._answer = answer
        self._drawn = 0
        last = Entry(*log[-1]) if log else None
        if options.seed is not None:
            self.seed, self._draws = options.seed, 0
        elif last is not None:
            self.seed, self._draws = last.seed, last.draws
        else:
            self.seed, self._draws = seed, 0

    @property
    def draws(self) -> int:
        """How many tokens the conversation has drawn with its seed."""
        return self._draws + (self._drawn if self.options.sampling.temperature > 0 else 0)

    def take(self, token: int, ends: Collection[int]) -> str:
        """Add the token that was chosen; return the text that it makes certain."""
        self._drawn += 1
        answer, options = self._answer, self.options
        if token in ends or token in options.stop_tokens:
            return self._end("stop")
        self.reading.tokens.append(token)
        text = answer.add(token)
        if answer.is_stopped:
            return text + self._end("stop")
        return text + self._end("length") if self._drawn >= options.most_tokens else text

    def _end(self, reason: str) -> str:
        rest = self._answer.end()
        if self._answer.is_stopped:
            reason = "stop"
        self.outcome = Outcome(self._answer.text, reason, self._before, self.reading.kept or 0, self._drawn)
        return rest

    def entry(self) -> Entry:
        """Return what the turn adds to the log: what the client has sent and got."""
        answer = self._answer
        said = answer.encoded_text() if answer.is_stopped else answer.tokens
        return Entry(array(_FOUR_BYTES, [*self._prompt, *said]).tobytes(), self.seed, self.draws)
