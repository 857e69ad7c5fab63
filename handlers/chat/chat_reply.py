"""A request while it is answered: its answers, which may be several, and what is sent of them."""

from __future__ import annotations

from typing import Any

from chat_answers import Form, Said, Used
from chat_turn import Turn


class Reply:
    """The answers to one request.

    Args:
        form: How they are written.
        turns: The answers; those of a list are to the same prompt, which the first one reads for all.
        streams: Whether they are sent while they are made.

    Attributes:
        turns: All answers.
        failure: Why there are none, if the request has failed.
        has_sent: Whether a part was sent.
    """

    def __init__(self, form: Form, turns: list[list[Turn]], *, streams: bool) -> None:
        self.form = form
        self.streams = streams
        self.turns = [turn for same in turns for turn in same]
        self.failure: str | None = None
        self.has_sent = False
        self._prompts = turns
        self._parts: list[str] = []

    @property
    def running(self) -> list[Turn]:
        """The answers that get their next token now."""
        begun = [same if same[0].has_begun else same[:1] for same in self._prompts]
        return [turn for same in begun for turn in same if turn.outcome is None]

    def is_awaited(self, turn: Turn) -> bool:
        """Return whether an answer has read its prompt for others, which begin now."""
        return turn.used.tokens == 1 and any(len(same) > 1 and same[0] is turn for same in self._prompts)

    @property
    def is_complete(self) -> bool:
        """Whether nothing more comes."""
        return self.failure is not None or all(turn.outcome is not None for turn in self.turns)

    @property
    def used(self) -> Used:
        """The tokens of all answers; those of a prompt count once."""
        firsts = [same[0].used for same in self._prompts]
        prompt, cached = sum(used.prompt for used in firsts), sum(used.cached for used in firsts)
        said = [turn.used for turn in self.turns]
        return Used(prompt, cached, sum(used.tokens for used in said), sum(used.thought for used in said))

    def add(self, turn: Turn, said: Said) -> None:
        """Take what a token has made certain of an answer."""
        if not self.streams:
            return
        if turn.outcome is None:
            part = self.form.part(turn.place, said, turn.used)
        else:
            part = self.form.last(turn.place, said, turn.outcome)
        if part:
            self._parts.append(part)

    def result(self) -> Any:
        """Return what is to be sent now; None if that is nothing."""
        if not self.streams:
            outcomes = [turn.outcome for turn in self.turns if turn.outcome is not None]
            return self.form.whole(outcomes, self.used) if self.is_complete else None
        if not self.is_complete and not self._parts:
            return None
        text = "".join(self._parts) + (self.form.end(self.used) if self.is_complete else "")
        self._parts.clear()
        return text
