"""A turn: one answer while it is made, and the entry of its conversation's log that it becomes."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from chat_answers import Outcome, Said, Used
from chat_decoder import Reading
from chat_requests import Options
from chat_sampling import Penalizing, Penalties, TokenLogprobs, logprobs_of, new_seed
from chat_text import Answer
from chat_thoughts import Thought

if TYPE_CHECKING:
    from chat_grammar import Grammar

_FOUR_BYTES: Final = "I"  # an unsigned integer of an array


class Entry(NamedTuple):
    """What one turn has added to a conversation.

    Attributes:
        tokens: Of what was asked and answered, each four bytes, little-endian.
        seed: Of what is drawn, if a client has set it: then the next turns continue it. None to draw new ones.
        draws: How many tokens the conversation has drawn with this seed.
    """

    tokens: bytes
    seed: int | None
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
    """One answer while it is made.

    Attributes:
        reading: All tokens of the conversation, and what the model has read of them.
        place: Of the answer among those to its request.
        sequence_id: Its sequence, if its log is kept; None for a request that carries its own history.
        log: The conversation before it.
        outcome: The answer, once it is complete.
    """

    def __init__(
        self,
        log: Log,
        prompt: list[int],
        options: Options,
        answer: Answer,
        *,
        place: int = 0,
        sequence_id: str | None = None,
        grammar: Grammar | None = None,
        thought: Thought | None = None,
    ) -> None:
        self.log = log
        self.reading = Reading([*tokens_of(log), *prompt])
        self.options = options
        self.place = place
        self.sequence_id = sequence_id
        self.outcome: Outcome | None = None
        self._prompt = prompt
        self._before = len(self.reading.tokens)
        self._answer = answer
        self._grammar = grammar
        self._thought = thought
        has_penalties = options.penalties != Penalties()
        self._penalizing = Penalizing(options.penalties, list(self.reading.tokens)) if has_penalties else None
        #: How likely the tokens were: all of them, and how many of these were sent.
        self._logprobs: list[TokenLogprobs] = []
        self._sent = 0
        #: How many tokens of the conversation are before it, or were sent.
        self._told = self._before
        self._drawn = 0
        last = Entry(*log[-1]) if log else None
        self.seed, self._draws, self._is_seeded = new_seed(), 0, False
        if options.seed is not None:
            self.seed, self._is_seeded = options.seed + place, True
        elif last is not None and last.seed is not None:
            self.seed, self._draws, self._is_seeded = last.seed, last.draws, True

    @property
    def draws(self) -> int:
        """How many tokens the conversation has drawn with its seed."""
        return self._draws + (self._drawn if self.options.sampling.temperature > 0 else 0)

    @property
    def has_begun(self) -> bool:
        """Whether the answer has a token, so that all before it was read."""
        return self._drawn > 0

    @property
    def used(self) -> Used:
        """The tokens so far."""
        thought = 0 if self._thought is None else len(self._thought.tokens)
        return Used(self._before, min(self.reading.kept or 0, self._before), self._drawn, thought)

    def shaped(self, logits: torch.Tensor, ends: Collection[int]) -> torch.Tensor:
        """Return the logits [vocabulary] as the request changes them. Raises GrammarFailed."""
        if self._penalizing is not None:
            logits = self._penalizing(logits)
        thought, grammar = self._thought, self._grammar
        is_thinking = thought is not None and thought.is_open
        if grammar is not None and not is_thinking:
            opens = thought.marks.opens if thought is not None and thought.may_begin else None
            return grammar.mask(logits, besides=opens)
        if grammar is not None or self._drawn < self.options.least_tokens:  # a thought alone does not fit a grammar
            logits = logits.clone()
            logits[[token for token in {*ends, *self.options.stop_tokens} if token < logits.shape[0]]] = -torch.inf
        return logits

    def take(self, token: int, ends: Collection[int], logits: torch.Tensor | None) -> Said:
        """Add a token; return what it makes certain. Raises GrammarFailed.

        Args:
            logits: Those by which it was chosen; None if that was in a run before this one, which has sent them.
        """
        self._drawn += 1
        options, thought = self.options, self._thought
        is_end = (token in ends and not options.ignores_end) or token in options.stop_tokens
        thinks = None if is_end or thought is None else thought.take(token)
        if options.top_logprobs is not None and logits is not None and thinks is None:
            self._logprobs.append(logprobs_of(logits, token, options.top_logprobs))
        if self._penalizing is not None:
            self._penalizing.add(token)
        text = ""
        if not is_end:
            self.reading.tokens.append(token)
            text = self._say(token) if thinks is None else ""
        thinks = thinks or ""
        is_whole = is_end or self._is_whole
        if is_whole or self._drawn >= options.most_tokens:
            thinks += "" if thought is None else thought.end()
            text += self._end("stop" if is_whole else "length")
        if not (thinks or text) and self.outcome is None:
            return Said("", "", [], [])
        new = self._logprobs[self._sent :] if text or self.outcome is not None else []
        said = Said(thinks, text, new, self.reading.tokens[self._told :])
        self._sent, self._told = self._sent + len(new), len(self.reading.tokens)
        return said

    def _say(self, token: int) -> str:
        if self._grammar is not None:
            self._grammar.add(token)
        self._answer.skips_space = self._thought is not None and bool(self._thought.tokens)
        return self._answer.add(token)

    @property
    def _is_whole(self) -> bool:
        """Whether a stop string or the grammar has ended the answer."""
        return self._answer.is_stopped or (self._grammar is not None and self._grammar.is_over)

    def _end(self, reason: str) -> str:
        rest = self._answer.end()
        if self._answer.is_stopped:
            reason = "stop"
        thought = "" if self._thought is None else self._thought.text
        self.outcome = Outcome(thought, self._answer.text, reason, self.used, self._logprobs)
        return rest

    def entry(self) -> Entry:
        """Return what the turn adds to the log: what the client has sent and got."""
        answer = self._answer
        said = answer.encoded_text() if answer.is_stopped else answer.tokens
        thought = [] if self._thought is None else self._thought.tokens
        tokens = array(_FOUR_BYTES, [*self._prompt, *thought, *said]).tobytes()
        return Entry(tokens, self.seed, self.draws) if self._is_seeded else Entry(tokens, None, 0)
