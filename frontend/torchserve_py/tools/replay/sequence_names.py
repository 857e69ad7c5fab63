"""The names of a recorded sequence and of the one that stands for it: its id, and the ids that a server makes in it.

A server makes the ids of OpenAI's responses, conversations and messages anew. They appear in two answers to the same
request in the same order, so from these it is known which stands for which.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

_NUMBERS: Final = frozenset((int, float, bool))
_MADE_IDS: Final = re.compile(r"\b(resp|conv|msg)_[0-9a-f]{32,}")


class SequenceNames:
    """The names of one sequence."""

    __slots__ = ("_fresh", "_recorded", "fresh_id", "recorded_id")

    def __init__(self, recorded_id: str, fresh_id: str) -> None:
        self.recorded_id = recorded_id
        self.fresh_id = fresh_id
        self._fresh: dict[str, str] = {}
        self._recorded: dict[str, str] = {}

    def learn(self, recorded: bytes, replayed: bytes) -> None:
        """Learn which ids stand for which, from the answers to one request."""
        ours, theirs = list(self._new(recorded, self._fresh)), list(self._new(replayed, self._recorded))
        for kind in ("resp", "conv", "msg"):
            pairs = zip(*([each for each in ids if each.startswith(kind)] for ids in (ours, theirs)), strict=False)
            for one, other in pairs:
                self._fresh[one], self._recorded[other] = other, one

    @staticmethod
    def _new(answer: bytes, known: dict[str, str]) -> Iterator[str]:
        found = (each[0] for each in _MADE_IDS.finditer(answer.decode("utf-8", "replace")))
        return (each for each in dict.fromkeys(found) if each not in known)

    def in_request(self, text: str) -> str:
        """Return a part of a recorded request with the ids that stand for those in it."""
        return _MADE_IDS.sub(lambda found: self._fresh.get(found[0], found[0]), text) if self._fresh else text

    def strangers(self, text: str) -> bool:
        """Return whether a recorded text names a response or a conversation that no answer of the replay has named."""
        return any(each[0] not in self._fresh for each in _MADE_IDS.finditer(text) if each[1] != "msg")

    def in_answer(self, value: Any) -> Any:
        """Return a value of a replayed answer with the recorded names for those in it."""
        if isinstance(value, dict):
            return {self.in_answer(name): self.in_answer(each) for name, each in value.items()}
        if isinstance(value, list):
            return value if set(map(type, value)) <= _NUMBERS else [self.in_answer(each) for each in value]
        if isinstance(value, bytes):
            return value.replace(self.fresh_id.encode(), self.recorded_id.encode())
        if not isinstance(value, str):
            return value
        value = value.replace(self.fresh_id, self.recorded_id)
        return _MADE_IDS.sub(lambda found: self._recorded.get(found[0], found[0]), value) if self._recorded else value
