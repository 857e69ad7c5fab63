"""`KeptPrefixes`: the keys and values of conversations that rest, found again by the tokens that they are of.

A conversation that continues finds those of all its tokens, a fork those up to where it leaves the other one, and a
client that sends its whole history those of the part that was seen before. Nothing depends on what is kept here: what
is missing is read again.

Entries are found by the hashes of their units, each of which covers all tokens up to its end, as in vLLM's automatic
prefix caching; then token by token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from ts.sequence.arena import UNIT, Arena, ArenaState


class _Entry:
    __slots__ = ("hashes", "state", "tokens")

    def __init__(self, tokens: tuple[int, ...], state: ArenaState) -> None:
        self.tokens = tokens
        self.state = state
        self.hashes = list(_hashes(tokens))


class KeptPrefixes:
    """Keys and values by their tokens, the least recently used first to go: to the host's memory, then for good.

    Args:
        arena: Where they are.
        most_host_bytes: What they may take of the host's memory.
    """

    def __init__(self, arena: Arena, most_host_bytes: int) -> None:
        self._arena = arena
        self._most_host_bytes = most_host_bytes
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        #: The entries that have a unit, by its hash.
        self._having: dict[int, dict[_Entry, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, tokens: Sequence[int]) -> tuple[int, ArenaState | None]:
        """Return the state with the most of these tokens from the first on, and how many; 0 and None without one."""
        best: _Entry | None = None
        for each in _hashes(tokens):
            having = self._having.get(each)
            if having is None:
                break
            best = next(reversed(having))
        if best is None:
            return 0, None
        count = _common(best.tokens, tokens)
        self._entries.move_to_end(best.tokens)
        return count, self._arena.first(best.state, count)

    def put(self, tokens: Sequence[int], state: ArenaState) -> None:
        """Keep a state. One that it continues is not needed any more."""
        if len(tokens) < UNIT:
            return
        entry = _Entry(tuple(tokens), state)
        for longer in self._having.get(entry.hashes[-1], ()):
            if longer.tokens[: len(entry.tokens)] == entry.tokens:
                self._entries.move_to_end(longer.tokens)
                return
        last_units = [self._having.get(each, {}) for each in entry.hashes]
        for shorter in {each for having in last_units for each in having}:
            if entry.tokens[: len(shorter.tokens)] == shorter.tokens:
                self._drop(shorter)
        self._entries[entry.tokens] = entry
        for each in entry.hashes:
            self._having.setdefault(each, {})[entry] = None

    def make_room(self, units: int) -> None:
        """Move states to the host's memory until so many units of the arena are free, or none is left to move."""
        while (wanted := units - self._free_units) > 0:
            moved, size = [], 0
            for entry in self._entries.values():
                if entry.state.units:
                    moved.append(entry.state)
                    size += len(entry.state.units)
                    if size >= wanted:
                        break
            if not moved:
                break
            self._arena.move_to_host(moved)
        self._limit_host_bytes()

    @property
    def _free_units(self) -> int:
        return self._arena.capacity - self._arena.used_bytes // self._arena.unit_bytes

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._having.clear()

    def _limit_host_bytes(self) -> None:
        size = sum(self._bytes(entry) for entry in self._entries.values() if not entry.state.units)
        for entry in list(self._entries.values()):
            if size <= self._most_host_bytes:
                break
            if not entry.state.units:
                size -= self._bytes(entry)
                self._drop(entry)

    def _bytes(self, entry: _Entry) -> int:
        return -(-entry.state.length // UNIT) * self._arena.unit_bytes

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.tokens]
        for each in entry.hashes:
            having = self._having[each]
            having.pop(entry, None)
            if not having:
                del self._having[each]


def _hashes(tokens: Sequence[int]) -> Iterator[int]:
    """Yield a hash for each full unit, of all tokens up to its end."""
    covered = 0
    for end in range(UNIT, len(tokens) + 1, UNIT):
        covered = hash((covered, *tokens[end - UNIT : end]))
        yield covered


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Return with how many equal tokens both begin."""
    for count, (one, other) in enumerate(zip(tokens, others, strict=False)):
        if one != other:
            return count
    return min(len(tokens), len(others))
