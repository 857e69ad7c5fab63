"""`Arena`: tensors of many sequences in a few large ones, gathered and written for a whole batch at once.

    def initialize(self, context):
        self.arena = Arena(context, {"hidden": Field((256,))}, device=self.device)

    def handle(self, data, context):
        rows = range(len(data))
        hidden = self.arena.gather([context.state.get(row) for row in rows])["hidden"]  # [rows, 256]
        outputs, hidden = self.model(inputs, hidden)
        for row, state in zip(rows, self.arena.scatter({"hidden": hidden})):
            context.state[row] = state

An `ArenaState` never changes: a step makes a new one. So a step that fails costs nothing to undo, and a sequence may be
continued in two ways from one state. What a field that grows has had before is shared by the states after it. A field
with a window keeps the last entries only, and the first ones if these are pinned, so a stream can go on for ever.

The memory is divided into units: one for each state if the fields have a fixed size, or one for each `UNIT` entries if
they grow, as in vLLM's PagedAttention (Kwon et al., 2023, section 4). A unit is free as soon as no state refers to it.
If no unit is free, the states in the handler's `SequenceCache` that were not used for the longest time move to the
host's memory, all in one copy, and come back when they are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ts.jobs.device_copies import to_device, to_host
from ts.sequence.arena_window import Units, Window
from ts.sequence.sequence_cache import default_capacity
from ts.sequence.state_tiers import DEVICE, HOST

if TYPE_CHECKING:
    from ts.context import Context

#: Entries of a field that grows in one unit; fewer for short windows.
UNIT: Final = 16
#: A window has at least so many units, since a part of the first and of the last one is not in use.
_UNITS_OF_A_WINDOW: Final = 8
#: At least this share of the arena moves to the host at once, so that not every step has to move something.
_MOVED_AT_ONCE: Final = 16


class Field(NamedTuple):
    """A tensor that each sequence has.

    Attributes:
        shape: Its shape, without the dimension that grows.
        dtype: The type of its values.
        grows: The place of the dimension that grows, in the shape with it; None if none does.
        window: How many of the last entries are kept; None keeps all.
        pinned: How many of the first entries are kept as well (attention sinks).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    grows: int | None = None
    window: int | None = None
    pinned: int = 0


class ArenaFull(MemoryError):
    """The states that one batch needs do not fit into the arena. The message has the sizes."""


class _Unit:
    """A piece of the arena's memory, free again once nobody refers to it; ``used`` are the entries that are written."""

    __slots__ = ("_free", "index", "used")

    def __init__(self, index: int, free: list[int]) -> None:
        self.index = index
        self.used = 0
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.index)


class _HostCopy:
    """The tensors of a state in the host's memory, by field, each [units, …]; counted while somebody refers to it."""

    __slots__ = ("_sizes", "size", "tensors")

    def __init__(self, tensors: Mapping[str, torch.Tensor], sizes: list[int]) -> None:
        self.tensors = tensors
        self.size = sum(tensor.nbytes for tensor in tensors.values())
        self._sizes = sizes
        sizes[0] += self.size

    def __del__(self) -> None:
        self._sizes[0] -= self.size


class ArenaState:
    """What a sequence has in an arena. It never changes, so a copy is the state itself.

    Attributes:
        length: How many entries its fields that grow have had; 1 if none grow.
    """

    __slots__ = ("length", "on_host", "units")

    #: See `ts.sequence.state_size`: the arena counts what is in the host's memory.
    is_counted_elsewhere = True

    def __init__(self, length: int, units: tuple[_Unit, ...]) -> None:
        self.length = length
        #: Empty while it is only in the host's memory.
        self.units = units
        #: None if its tensors are only on the device.
        self.on_host: _HostCopy | None = None

    def __copy__(self) -> ArenaState:
        return self

    def __deepcopy__(self, memo: Any) -> ArenaState:
        return self

    def __repr__(self) -> str:
        return f"ArenaState(length={self.length})"


class Arena:
    """The tensors of one handler's sequences.

    Args:
        context: The handler's context, the argument of ``initialize``.
        spec: The fields of a sequence by name. Either all of them grow or none does, and all that grow have a window
            or none has. Of windows that differ, the longest determines the memory that a state takes.
        most_bytes: The bytes that the arena may have on the device; they are allocated at once. By default it has room
            for all sequences that the model may have open, and one batch; fields that grow without a window have no
            default.
        device: Where it is.

    Raises ValueError: ``spec`` is empty or mixed, a window is impossible, ``most_bytes`` is missing or holds no state,
    or the handler has an arena or a cache already.
    """

    def __init__(
        self,
        context: Context,
        spec: Mapping[str, Field],
        *,
        most_bytes: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._windows = _windows_of(spec)
        self.grows = next(iter(spec.values())).grows is not None
        self._spec = dict(spec)
        self._units = _units_of(self._windows) if self.grows else Units(1)
        self._entries = self._units.entries
        size = self._entries * sum(field.dtype.itemsize * prod(field.shape) for field in spec.values())
        least = self._units.most or 1
        if most_bytes is None:
            if self.grows and not self._windows:
                raise ValueError("most_bytes is missing: nobody knows how long fields that grow become")
            config = context.model_yaml_config
            most_bytes = size + size * least * (default_capacity(config) + int(config.get("batchSize") or 1))
        count = most_bytes // max(size, 1)
        if count < 1 + least:
            what = f"a state of this arena has up to {least} units of" if least > 1 else "a unit of this arena has"
            raise ValueError(f"most_bytes={most_bytes} holds no state: {what} {size} bytes")
        self.unit_bytes = size
        self.capacity = count - 1
        self._device = torch.device(device)
        self._context = context
        # Unit 0 is never given to a state: it has the zeros of a sequence that begins, and of what fills rows up.
        self._memory = {
            name: torch.zeros((count, self._entries, *field.shape), dtype=field.dtype, device=self._device)
            for name, field in spec.items()
        }
        self._free = list(range(self.capacity, 0, -1))
        #: The bytes in the host's memory, which copies of states count themselves.
        self._host_bytes = [0]
        if context.arena is not None:
            raise ValueError("a handler has one Arena: name all tensors of a sequence in its spec")
        if context.sequence_cache is not None:
            raise ValueError("make the Arena before the SequenceCache, which has to know how its states are written")
        context.arena = self
        context.state_encoders[ArenaState] = (self._encoded, self._decoded)

    @property
    def used_bytes(self) -> int:
        """The bytes on the device that states refer to."""
        return (self.capacity - len(self._free)) * self.unit_bytes

    @property
    def host_bytes(self) -> int:
        """The bytes of states in the host's memory."""
        return self._host_bytes[0]

    def host_bytes_of(self, value: Any) -> int:
        """Return the bytes in the host's memory of the states in a value, or in a dict or list of them."""
        return sum(state.on_host.size for state in _states_in(value) if state.on_host is not None)

    def sequences_on_device(self, values: Iterable[Any]) -> int:
        """Return how many of these values have states, all of which are on the device."""
        return sum(any(parts) and all(state.units for state in parts) for parts in map(list, map(_states_in, values)))

    # Reading

    def gather(self, states: Sequence[ArenaState | None]) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch's sequences by field, each [rows, *shape]; zeros for None.

        Fields that grow have the length of the longest row; shorter rows have zeros behind their `lengths`. Fields with
        a window always have the length ``pinned + window``: the pinned entries and then the last ones in order, the
        last one at the end, with zeros before those of a row that has fewer. Raises ArenaFull.
        """
        self._use(states)
        if self._windows:
            return self._gather_windows(states)
        if self.grows:
            return self._gather_grown(states)
        index = self._index([0 if state is None else state.units[0].index for state in states])
        return {name: memory.index_select(0, index)[:, 0] for name, memory in self._memory.items()}

    def _gather_grown(self, states: Sequence[ArenaState | None]) -> dict[str, torch.Tensor]:
        table = self._table(states)
        lengths = [0 if state is None else state.length for state in states]
        longest = max(lengths, default=0)
        # What other states have left there may be NaN, which no mask of attention removes: 0 * NaN is NaN.
        behind = None
        if min(lengths, default=0) < longest:
            behind = torch.arange(longest, device=self._device) >= self._index(lengths)[:, None]
        found = {}
        for name, memory in self._memory.items():
            rows = memory.index_select(0, table.flatten())
            whole = rows.view(len(states), table.shape[1] * UNIT, *self._spec[name].shape)[:, :longest]
            if behind is not None:
                whole.masked_fill_(behind.view(*behind.shape, *[1] * (whole.dim() - 2)), 0)
            found[name] = whole.movedim(1, self._growing(name))
        return found

    def _gather_windows(self, states: Sequence[ArenaState | None]) -> dict[str, torch.Tensor]:
        table, lengths = self._table(states), self.lengths(states)
        places = {
            window: self._units.places(window.positions(lengths), lengths, table).flatten()
            for window in set(self._windows.values())
        }
        found = {}
        for name, memory in self._memory.items():
            window, shape = self._windows[name], self._spec[name].shape
            rows = memory.view(-1, *shape).index_select(0, places[window])
            found[name] = rows.view(len(states), window.width, *shape).movedim(1, self._growing(name))
        return found

    def positions(self, states: Sequence[ArenaState | None]) -> dict[str, torch.Tensor]:
        """Return the position in its sequence of each entry that `gather` returns, by field, each [rows, length].

        It is -1 where a row has no entry, so ``positions[name] >= 0`` is the mask of attention. Positions count from 0;
        the next entry of a row gets the position `lengths`.

        Raises ValueError: the fields have no window.
        """
        if not self._windows:
            raise ValueError("the fields of this arena have no window: the position of an entry is its place")
        lengths = self.lengths(states)
        positions = {window: window.positions(lengths) for window in set(self._windows.values())}
        return {name: positions[window] for name, window in self._windows.items()}

    def lengths(self, states: Sequence[ArenaState | None]) -> torch.Tensor:
        """Return how many entries each row has had, an integer tensor [rows] on the arena's device."""
        return self._index([0 if state is None else state.length for state in states])

    # Writing

    def scatter(self, tensors: Mapping[str, torch.Tensor]) -> list[ArenaState]:
        """Return new states with the rows of these tensors, each [rows, *shape].

        Raises:
            ArenaFull: The states do not fit.
            ValueError: A field is missing or has another shape, or the arena's fields grow.
        """
        if self.grows:
            raise ValueError("the fields of this arena grow: use append")
        rows = self._rows_of(tensors, ())
        units = self._allocate(rows)
        index = self._index([unit.index for unit in units])
        for name, memory in self._memory.items():
            memory[:, 0].index_copy_(0, index, tensors[name].detach().to(memory))
        return [ArenaState(1, (unit,)) for unit in units]

    def append(
        self,
        states: Sequence[ArenaState | None],
        tensors: Mapping[str, torch.Tensor],
        counts: Sequence[int] | None = None,
    ) -> list[ArenaState]:
        """Return states with further entries; the given ones stay as they are.

        Args:
            states: One for each row; None for a sequence that begins.
            tensors: By field, [rows, *shape] with the dimension that grows.
            counts: How many of these entries each row gets, the first ones; by default all.

        Raises:
            ArenaFull: The states do not fit.
            ValueError: A field is missing or has another shape, or the arena's fields have a fixed size.
        """
        if not self.grows:
            raise ValueError("the fields of this arena have a fixed size: use scatter")
        entries = {
            name: tensors[name].detach().movedim(self._growing(name), 1) for name in self._spec if name in tensors
        }
        width = next(iter(entries.values())).shape[1] if entries else 0
        rows = self._rows_of(entries, (width,))
        counts = [width] * rows if counts is None else counts
        if len(states) != rows or len(counts) != rows or not all(0 <= count <= width for count in counts):
            raise ValueError(f"{rows} rows of {width} entries have {len(states)} states and the counts {list(counts)}")
        self._use(states)
        shared = [self._shared_units(state, count) for state, count in zip(states, counts, strict=True)]
        lengths = [0 if state is None else state.length for state in states]
        after = [length + count for length, count in zip(lengths, counts, strict=True)]
        needed = [self._units.count(length) - len(kept) for (kept, _), length in zip(shared, after, strict=True)]
        fresh = self._allocate(sum(needed), states)
        grown: list[tuple[_Unit, ...]] = []
        copies: list[tuple[int, int]] = []
        for (kept, copied), need in zip(shared, needed, strict=True):
            own = [fresh.pop() for _ in range(need)]
            if copied is not None:
                copies.append((copied.index, own[0].index))
            grown.append((*kept, *own))
        self._copy_units(copies)
        self._write(entries, grown, lengths, after)
        return [ArenaState(length, units) for units, length in zip(grown, after, strict=True)]

    def rebuild(
        self, states: Sequence[ArenaState | None], entries: Sequence[Sequence[Mapping[str, torch.Tensor]]]
    ) -> list[ArenaState]:
        """Return the states that `append` has made, from logs; for the handler's method ``rebuild``.

        Args:
            states: As they were stored whole, or None.
            entries: What steps have appended since, for each row: by field, [*shape] with the dimension that grows.

        Raises as `append`.
        """
        made: list[ArenaState] = []
        for state, row in zip(states, entries, strict=True):
            if row:
                whole = {
                    name: torch.cat([each[name] for each in row], field.grows or 0)
                    for name, field in self._spec.items()
                }
                made += self.append([state], {name: tensor[None] for name, tensor in whole.items()})
            else:
                made.append(state or ArenaState(0, ()))
        return made

    def first(self, state: ArenaState, length: int) -> ArenaState:
        """Return the state of the first entries of another one, whose memory it shares.

        Raises ValueError: ``length`` is not 1 to the length of the state, the arena's fields have a fixed size, or
        windows have moved past entries that were among the last ones then. Keep the earlier state itself for this: it
        costs only what the later one has forgotten.
        """
        if not self.grows or not 1 <= length <= state.length:
            raise ValueError(f"a state of {state.length} entries has no first {length}")
        if length < state.length and any(state.length > window.width for window in self._windows.values()):
            raise ValueError(
                f"a state of {state.length} entries has forgotten some that one of the first {length} has in its"
                " window: keep the state that it was then"
            )
        count = self._units.count(length)
        shorter = ArenaState(length, state.units[:count])
        if state.on_host is not None:
            some = {name: tensor[:count] for name, tensor in state.on_host.tensors.items()}
            shorter.on_host = _HostCopy(some, self._host_bytes)
        return shorter

    def _shared_units(self, state: ArenaState | None, count: int) -> tuple[tuple[_Unit, ...], _Unit | None]:
        """Return the units that a state with ``count`` further entries shares with this one, and one to be copied.

        The last one has to be copied if another state has written behind the entries of this one.
        """
        if state is None:
            return (), None
        kept = self._units.kept(state.units, state.length, state.length + count)
        filled = state.length % self._entries
        if not filled or not count or not kept or kept[-1] is not state.units[-1]:
            return kept, None
        last = kept[-1]
        if last.used != filled:
            return kept[:-1], last
        last.used = min(filled + count, self._entries)  # the room behind these entries is taken now
        return kept, None

    def _copy_units(self, copies: Sequence[tuple[int, int]]) -> None:
        if copies:
            source, target = (self._index(each) for each in zip(*copies, strict=True))
            for memory in self._memory.values():
                memory.index_copy_(0, target, memory.index_select(0, source))

    def _write(
        self,
        entries: Mapping[str, torch.Tensor],
        grown: Sequence[tuple[_Unit, ...]],
        lengths: Sequence[int],
        after: Sequence[int],
    ) -> None:
        """Write entries, each [rows, width, *shape], from ``lengths`` to ``after``, apart from those not kept."""
        width = next(iter(entries.values())).shape[1]
        places: list[int] = []
        taken: list[int] = []
        for row, (units, start, end) in enumerate(zip(grown, lengths, after, strict=True)):
            for positions, unit in self._units.written(start, end):
                within, count = positions.start % self._entries, len(positions)
                units[unit].used = within + count
                place, source = units[unit].index * self._entries + within, row * width + positions.start - start
                places += range(place, place + count)
                taken += range(source, source + count)
        where = self._index(places)
        which = None if len(taken) == len(grown) * width else self._index(taken)
        for name, memory in self._memory.items():
            shape = self._spec[name].shape
            flat = entries[name].to(memory).reshape(-1, *shape)
            memory.view(-1, *shape).index_copy_(0, where, flat if which is None else flat.index_select(0, which))

    # Where states are

    def before_commit(self, values: Iterable[Any]) -> None:
        """Copy the states in these values, or in dicts and lists of them, to the host: they are about to be stored."""
        self.copy_to_host(dict.fromkeys(each for value in values for each in _states_in(value)))

    def copy_to_host(self, states: Iterable[ArenaState]) -> None:
        """Copy states to the host's memory, each field in one copy; they stay on the device as well."""
        missing = [state for state in states if state.on_host is None]
        if not missing:
            return
        index = self._index([unit.index for state in missing for unit in state.units])
        sizes = [len(state.units) for state in missing]
        copies = {
            name: torch.split(to_host(memory.index_select(0, index)), sizes) for name, memory in self._memory.items()
        }
        for place, state in enumerate(missing):
            # Each has memory of its own, which is free once the state is.
            own = {name: pieces[place].clone() if len(missing) > 1 else pieces[0] for name, pieces in copies.items()}
            state.on_host = _HostCopy(own, self._host_bytes)

    def _use(self, states: Sequence[ArenaState | None]) -> None:
        """Bring states back to the device, all in one copy of each field."""
        absent = list(
            dict.fromkeys(state for state in states if state is not None and not state.units and state.length)
        )
        if self._context.sequence_cache is not None:
            needed_now = len({id(state) for state in states if state is not None})
            self._context.sequence_cache.tiers.looked(DEVICE, needed_now - len(absent), len(absent))
        if not absent:
            return
        needed = [self._units_of(state) for state in absent]
        fresh = self._allocate(sum(needed), states)
        index = self._index([unit.index for unit in fresh])
        for name, memory in self._memory.items():
            rows = torch.cat([state.on_host.tensors[name] for state in absent if state.on_host is not None])
            memory.index_copy_(0, index, to_device(rows, self._device))
        for state, count in zip(absent, needed, strict=True):
            state.units, fresh = tuple(fresh[:count]), fresh[count:]
            state.units[-1].used = (state.length - 1) % self._entries + 1
            state.on_host = None
        if self._context.sequence_cache is not None:
            self._context.sequence_cache.tiers.moved(HOST, DEVICE, len(absent))

    def _allocate(self, count: int, used: Sequence[ArenaState | None] = ()) -> list[_Unit]:
        """Return units, after moving other states than those in use to the host if too few are free."""
        if count > len(self._free):
            self._move_to_host(count - len(self._free), used)
        if count > len(self._free):
            raise ArenaFull(
                f"the states of this batch need {count * self.unit_bytes} more bytes, and the arena has"
                f" {len(self._free) * self.unit_bytes} of {self.capacity * self.unit_bytes} for them"
            )
        return [_Unit(self._free.pop(), self._free) for _ in range(count)]

    def _move_to_host(self, needed: int, used: Sequence[ArenaState | None]) -> None:
        """Free units: those of the states that were not used for the longest time, some more than are needed."""
        cache, running = self._context.sequence_cache, {id(state) for state in used}
        kept = [] if cache is None else [state for value in cache.least_recent() for state in _states_in(value)]
        idle = deque(dict.fromkeys(state for state in kept if state.units and id(state) not in running))
        wanted = len(self._free) + max(needed, self.capacity // _MOVED_AT_ONCE)
        while idle and len(self._free) < wanted:
            size, moved = 0, []
            while idle and size < wanted - len(self._free):
                moved.append(idle.popleft())
                size += len(moved[-1].units)
            self.move_to_host(moved)

    def move_to_host(self, states: Sequence[ArenaState]) -> None:
        """Move states to the host's memory, each field in one copy. They come back when they are used."""
        self.copy_to_host(states)
        for state in states:
            state.units = ()
        if self._context.sequence_cache is not None:
            self._context.sequence_cache.tiers.moved(DEVICE, HOST, len(states))

    def _units_of(self, state: ArenaState) -> int:
        return self._units.count(state.length)

    # As bytes

    def _encoded(self, state: ArenaState) -> Any:
        self.copy_to_host([state])
        assert state.on_host is not None, "it was just copied"
        kept = {name: self._kept_places(name, state.length) for name in self._spec}
        encoded = state.length, {name: each.flatten(0, 1)[kept[name]] for name, each in state.on_host.tensors.items()}
        if state.units:  # the store has it, and the device
            state.on_host = None
        return encoded

    def _decoded(self, value: Any) -> ArenaState:
        length, tensors = value
        state = ArenaState(length, ())
        whole = {}
        for name, memory in self._memory.items():
            units = torch.zeros((self._units_of(state), *memory.shape[1:]), dtype=memory.dtype)
            self._check_stored(name, length, tensors[name])
            units.flatten(0, 1)[self._kept_places(name, length)] = tensors[name]
            whole[name] = units
        state.on_host = _HostCopy(whole, self._host_bytes)
        return state

    def _kept_places(self, name: str, length: int) -> slice | torch.Tensor:
        """Return where the entries of a field that a state keeps are in its units, in order."""
        window = self._windows.get(name)
        if window is None:
            return slice(length)
        lengths, own = torch.tensor([length]), torch.arange(max(1, self._units.count(length)))[None]
        return self._units.places(window.positions(lengths), lengths, own)[0, max(0, window.width - length) :]

    def _check_stored(self, name: str, length: int, stored: torch.Tensor) -> None:
        """Raise ValueError if a store has more or fewer entries of a field with a window than the field keeps now."""
        window = self._windows.get(name)
        if window is not None and len(stored) != min(length, window.width):
            raise ValueError(
                f"field {name!r} is stored with {len(stored)} entries of {length}, and window={window.size} and"
                f" pinned={window.pinned} keep {min(length, window.width)}: its window was another one"
            )

    # Checks

    def _rows_of(self, tensors: Mapping[str, torch.Tensor], before: tuple[int, ...]) -> int:
        """Return the number of rows. Raises ValueError: a field is missing, unknown or has another shape."""
        if tensors.keys() != self._spec.keys():
            raise ValueError(f"the fields are {sorted(tensors)}; this arena has {sorted(self._spec)}")
        rows = len(next(iter(tensors.values())))
        for name, tensor in tensors.items():
            shape = (rows, *before, *self._spec[name].shape)
            if tuple(tensor.shape) != shape:
                raise ValueError(f"field {name!r} has the shape {list(tensor.shape)}; {list(shape)} is right")
        return rows

    def _growing(self, name: str) -> int:
        """Return the place of the dimension that grows in a batch's tensor."""
        return 1 + (self._spec[name].grows or 0)

    def _table(self, states: Sequence[ArenaState | None]) -> torch.Tensor:
        """Return the numbers of the units of each row, [rows, most units], with the unit of zeros behind them."""
        units = [() if state is None else state.units for state in states]
        most = max([1, *map(len, units)])
        return self._index([number for row in units for number in _padded(row, most)]).view(len(states), most)

    def _index(self, numbers: Sequence[int]) -> torch.Tensor:
        return to_device(torch.tensor(numbers, dtype=torch.int64), self._device)


def _states_in(value: Any) -> Iterable[ArenaState]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    return (part for part in parts if isinstance(part, ArenaState))


def _padded(units: Sequence[_Unit], count: int) -> list[int]:
    return [unit.index for unit in units] + [0] * (count - len(units))


def _windows_of(spec: Mapping[str, Field]) -> dict[str, Window]:
    """Return the windows by field, none if there are none. Raises ValueError: the fields do not go together."""
    if len({field.grows is None for field in spec.values()}) != 1:
        raise ValueError("an arena has at least one field, and either all of its fields grow or none does")
    windows = {}
    for name, (_, _, grows, size, pinned) in spec.items():
        if size is None:
            if pinned:
                raise ValueError(f"field {name!r} has pinned={pinned} without a window, which keeps all entries")
            continue
        if grows is None:
            raise ValueError(f"field {name!r} has window={size}, which needs a dimension that grows, such as grows=0")
        if size < 1 or pinned < 0:
            raise ValueError(f"field {name!r} has window={size} and pinned={pinned}; from 1 and from 0 are right")
        windows[name] = Window(size, pinned)
    if windows and len(windows) < len(spec):
        raise ValueError(f"all fields of an arena have a window or none has; {sorted(spec.keys() - windows)} have none")
    return windows


def _units_of(windows: Mapping[str, Window]) -> Units:
    """Return the units of fields that grow."""
    if not windows:
        return Units(UNIT)
    size, pinned = (max(each) for each in zip(*windows.values(), strict=True))
    return Units(min(UNIT, max(1, size // _UNITS_OF_A_WINDOW)), Window(size, pinned))
