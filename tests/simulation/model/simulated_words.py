"""The model of the simulation: the state of a sequence is the list of the words that its steps have said.

Before them is the version of the model that has made the state. A version in ``migrating`` continues sequences of
others, but for one in ten.

With ``has_logs`` most steps store the word that they append, not the list.
"""

from collections.abc import Callable, Collection
from typing import Any

from ts.context import Context
from ts.sequence import SequenceCache

#: One of so many steps stores the state whole.
_WHOLE = 7
#: One of so many sequences cannot be migrated.
_STAYS = 10


class Handler:
    """Appends words in place, and answers with the whole state."""

    #: Called with the word of each step that runs, half way through it; returns the number of the run.
    run: Callable[[str], int]
    has_logs = False
    migrating: Collection[str] = ()
    #: Called with what is wrong with a state.
    complain: Callable[[str], None]

    def initialize(self, context: Context) -> None:
        self._version = str(context.system_properties["model_version"])
        context.migrate = self._migrate if self._version in self.migrating else None
        self._cache = SequenceCache(context)

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        return [self._step(str(context.get_sequence_id(index)), row["body"]) for index, row in enumerate(data)]

    def _step(self, sequence_id: str, body: str | bytes) -> str:
        word = body if isinstance(body, str) else bytes(body).decode()
        if sequence_id not in self._cache:
            self._cache[sequence_id] = [self._version]
        state = self._cache[sequence_id]
        if state[0] != self._version:
            Handler.complain(f"version {self._version} runs {word} on a state of version {state[0]}")
        state.append(word)
        if self.has_logs:
            if sum(word.encode()) % _WHOLE:
                self._cache.append(sequence_id, word)
            else:
                self._cache[sequence_id] = state
        return f"{Handler.run(word)} {' '.join(state[1:])}"

    def rebuild(self, states: list[list[str] | None], entries: list[list[str]]) -> list[list[str]]:
        return [[*(state or [self._version]), *words] for state, words in zip(states, entries, strict=True)]

    def _migrate(self, state: list[str], from_version: str) -> list[str]:
        if state[0] != from_version:
            Handler.complain(f"a state of version {state[0]} is migrated as one of version {from_version}")
        if sum(state[1].encode()) % _STAYS == 0:
            raise ValueError(state[1])
        return [self._version, *state[1:]]
