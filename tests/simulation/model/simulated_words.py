"""The model of the simulation: the state of a sequence is the list of the words that its steps have said.

With ``has_logs`` most steps store the word that they append, not the list.
"""

from collections.abc import Callable
from typing import Any

from ts.context import Context
from ts.sequence import SequenceCache

#: One of so many steps stores the state whole.
_WHOLE = 7


class Handler:
    """Appends words in place, and answers with the whole state."""

    #: Called with the word of each step that runs, half way through it; returns the number of the run.
    run: Callable[[str], int]
    has_logs = False

    def initialize(self, context: Context) -> None:
        self._cache = SequenceCache(context)

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        return [self._step(str(context.get_sequence_id(index)), row["body"]) for index, row in enumerate(data)]

    def _step(self, sequence_id: str, body: str | bytes) -> str:
        word = body if isinstance(body, str) else bytes(body).decode()
        if sequence_id not in self._cache:
            self._cache[sequence_id] = []
        state = self._cache[sequence_id]
        state.append(word)
        if self.has_logs:
            if sum(word.encode()) % _WHOLE:
                self._cache.append(sequence_id, word)
            else:
                self._cache[sequence_id] = state
        return f"{Handler.run(word)} {' '.join(state)}"

    def rebuild(self, states: list[list[str] | None], entries: list[list[str]]) -> list[list[str]]:
        return [[*(state or ()), *words] for state, words in zip(states, entries, strict=True)]
