"""`Places`: the memory in which conversations that run have their keys and values, each in one piece.

A place has room for a number of tokens, its capacity, which is one of a few. Places of one capacity lie side by side in
blocks, without gaps between those in use, so that attention reads all of a block in one call and pads no row to the
length of a much longer one. A conversation that outgrows its place moves to a larger one.
"""

from __future__ import annotations

from chat_layout import KeyValues, Layout

#: The smallest capacity.
_LEAST = 16
#: A block has at most this part of the memory, unless one place alone is larger.
_BLOCKS = 32


class Block:
    """Places of one capacity, side by side.

    Attributes:
        memory: The keys and values of all its places, [places, layers, heads, tokens, size].
        layers: The keys and the values by layer, each [places, heads, tokens, size].
    """

    def __init__(self, layout: Layout, slots: int, capacity: int) -> None:
        self.memory = layout.empty(slots, capacity)
        self.layers = layout.by_layer(self.memory)


class Place:
    """Memory for the keys and values of one conversation.

    Attributes:
        capacity: The tokens that it has room for.
        block: Where it is now.
        slot: Which place of the block it is.
    """

    __slots__ = ("block", "capacity", "slot")

    def __init__(self, capacity: int, block: Block, slot: int) -> None:
        self.capacity, self.block, self.slot = capacity, block, slot

    @property
    def key_values(self) -> KeyValues:
        """The memory of this place, [layers, heads, tokens, size]. It is this one until a place is given back."""
        return [tensor[self.slot] for tensor in self.block.memory]

    def clear(self, start: int) -> None:
        """Set what is behind the first ``start`` tokens to zero: what attention masks has to be a number, too."""
        for tensor in self.key_values:
            tensor[:, :, start:] = 0


class Places:
    """All places.

    Args:
        layout: What a model keeps of a token.
        most_bytes: The bytes that there are for places; from them follows how large a block is.
    """

    def __init__(self, layout: Layout, most_bytes: int) -> None:
        self._layout = layout
        self._block_tokens = most_bytes // layout.token_bytes // _BLOCKS
        self._used: dict[int, list[Place]] = {}
        self._blocks: dict[int, list[Block]] = {}

    @property
    def used_bytes(self) -> int:
        """The bytes that all places take."""
        return sum(self.bytes_for(capacity, len(used)) for capacity, used in self._used.items())

    def bytes_for(self, capacity: int, count: int) -> int:
        """Return the bytes that so many places of a capacity take."""
        slots = self._slots(capacity)
        return -(-count // slots) * slots * capacity * self._layout.token_bytes

    def _slots(self, capacity: int) -> int:
        return max(1, self._block_tokens // capacity)

    def take(self, capacity: int) -> Place:
        """Return a place. Its memory has to be cleared before attention reads it: see `Place.clear`."""
        used, blocks = self._used.setdefault(capacity, []), self._blocks.setdefault(capacity, [])
        index, slot = divmod(len(used), self._slots(capacity))
        if index == len(blocks):
            blocks.append(Block(self._layout, self._slots(capacity), capacity))
        place = Place(capacity, blocks[index], slot)
        used.append(place)
        return place

    def move(self, place: Place, capacity: int, length: int) -> Place:
        """Move the first ``length`` tokens of a place to a new one with another capacity, and return it."""
        larger = self.take(capacity)
        larger.clear(length)
        copy_tokens(place.key_values, larger.key_values, 0, length)
        self.give_back(place)
        return larger

    def give_back(self, place: Place) -> None:
        """Free a place. The last one of its capacity moves to where it was."""
        used = self._used[place.capacity]
        last = used[-1]
        if last is not place:
            for source, target in zip(last.key_values, place.key_values, strict=True):
                target.copy_(source)
            used[used.index(place)] = last
            freed = last.slot
            last.block, last.slot = place.block, place.slot
        else:
            freed = last.slot
        used.pop()
        if not freed:
            self._blocks[place.capacity].pop()

    def live(self, place: Place) -> int:
        """Return how many places of a place's block are in use: the first ones."""
        slots = self._slots(place.capacity)
        is_last = place.block is self._blocks[place.capacity][-1]
        return (len(self._used[place.capacity]) - 1) % slots + 1 if is_last else slots


class Plan:
    """Which places there will be, within a number of bytes.

    Attributes:
        used_bytes: What the places of the plan take.
    """

    def __init__(self, places: Places, most_bytes: int) -> None:
        self._places, self._most_bytes = places, most_bytes
        self._counts: dict[int, int] = {}
        self.used_bytes = 0

    def add(self, capacity: int, leaves: int = 0) -> bool:
        """Add a place, and the one of the capacity ``leaves`` that moves there, if both fit; return whether they do."""
        counts, used_bytes = dict[int, int](), self.used_bytes
        for each in (capacity, leaves) if leaves else (capacity,):
            before = counts.get(each, self._counts.get(each, 0))
            counts[each] = before + 1
            used_bytes += self._places.bytes_for(each, before + 1) - self._places.bytes_for(each, before)
        if used_bytes > self._most_bytes:
            return False
        self._counts.update(counts)
        self.used_bytes = used_bytes
        return True


def capacity_for(tokens: int) -> int:
    """Return the capacity of the smallest place for so many tokens: a power of two, or three quarters of one."""
    power = max(_LEAST, 1 << max(tokens - 1, 0).bit_length())
    return power * 3 // 4 if tokens <= power * 3 // 4 and power > _LEAST else power


def most_tokens_in(tokens: int) -> int:
    """Return the largest capacity to which a conversation can grow with room for so many tokens; 0 if there is none.

    While it grows it has two places.
    """
    most, capacity, smaller = 0, _LEAST, 0
    while capacity + smaller <= tokens:
        most, smaller, capacity = capacity, capacity, capacity_for(capacity + 1)
    return most


def copy_tokens(source: KeyValues, target: KeyValues, start: int, end: int) -> None:
    """Copy the keys and values of some tokens from one memory to another one, to where they were."""
    for from_, to in zip(source, target, strict=True):
        to[:, :, start:end] = from_[:, :, start:end]
