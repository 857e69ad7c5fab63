"""`Decoder`: one step of a causal transformer for many conversations at once, with their keys and values in an arena.

Each row of a step reads the tokens that its conversation has more than keys and values of: one if it is being
answered, a piece of its prompt if it has just come. Rows of both kinds take part in every step, so that a long prompt
delays the answers of others by no more than its piece takes (chunked prefill: Agrawal et al., Sarathi-Serve, 2024).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from chat_prefixes import KeptPrefixes
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ts.sequence.arena import UNIT, Arena, ArenaState, Field

if TYPE_CHECKING:
    from ts.context import Context

#: Where the time is in a tensor of keys or values that the arena gathers, without the rows: after layers and heads.
_TIME: Final = 2


class Reading:
    """A conversation that the model reads: its tokens, and the keys and values of the first of them.

    Attributes:
        tokens: All tokens so far; the caller appends what was chosen.
        kept: How many of them had keys and values when the conversation was first seen.
    """

    __slots__ = ("_state", "kept", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.kept: int | None = None
        self._state: ArenaState | None = None

    @property
    def read(self) -> int:
        """How many tokens have keys and values."""
        return 0 if self._state is None else self._state.length


class _Layers(NamedTuple):
    """Layers whose keys, and whose values, have the same shape: they share one field of the arena each."""

    numbers: list[int]
    keys: str
    values: str


class Decoder:
    """Runs a model step by step.

    Args:
        context: The handler's context.
        model: A causal language model of transformers, on its device.
        most_bytes: The bytes that keys and values may have on the device.
        most_host_bytes: The bytes that those of conversations which rest may have in the host's memory.
        most_prompt: The tokens of prompts that one step reads.

    Raises ValueError: the model keeps something else than keys and values, or ``most_bytes`` is too small.
    """

    def __init__(
        self, context: Context, model: Any, *, most_bytes: int, most_host_bytes: int, most_prompt: int
    ) -> None:
        self.model = model
        self._takes = set(inspect.signature(model.forward).parameters)
        # The layers of these look back over a distance in the cache, so no row may have a gap in it.
        text_config = model.config.get_text_config(decoder=True)
        self._needs_no_gaps = any(
            getattr(text_config, name, None) for name in ("sliding_window", "attention_chunk_size")
        )
        self._most_prompt = most_prompt
        fields, self._layers = self._layout()
        self.arena = Arena(context, fields, most_bytes=most_bytes, device=model.device)
        self.prefixes = KeptPrefixes(self.arena, most_host_bytes)

    @property
    def most_tokens(self) -> int:
        """The most tokens that one conversation can have here."""
        return (self.arena.capacity - 1) * UNIT

    def _layout(self) -> tuple[dict[str, Field], list[_Layers]]:
        """Return the fields of the arena, and which layers they are for, from what the model keeps of one token."""
        cache, kind = DynamicCache(), self.model.config.model_type
        self._run(torch.zeros((1, 1), dtype=torch.int64), cache)
        if not cache.layers:
            raise ValueError(f"this model ({kind}) keeps no keys and values, and handlers/chat knows nothing else")
        shapes: dict[tuple[torch.Size, torch.Size, torch.dtype], list[int]] = {}
        for number, layer in enumerate(cache.layers):
            if type(layer) is not DynamicLayer or layer.get_seq_length() != 1:
                raise ValueError(
                    f"layer {number} of this model ({kind}) keeps a {type(layer).__name__}, and"
                    " handlers/chat knows only layers that keep the keys and values of each token"
                )
            shape = (layer.keys[0, :, 0].shape, layer.values[0, :, 0].shape, layer.keys.dtype)
            shapes.setdefault(shape, []).append(number)
        fields: dict[str, Field] = {}
        groups = []
        for (keys, values, dtype), numbers in shapes.items():
            group = _Layers(numbers, f"keys{len(groups)}", f"values{len(groups)}")
            fields[group.keys] = Field((len(numbers), *keys), dtype, grows=_TIME)
            fields[group.values] = Field((len(numbers), *values), dtype, grows=_TIME)
            groups.append(group)
        return fields, groups

    # One step

    def step(self, readings: Sequence[Reading]) -> dict[Reading, torch.Tensor]:
        """Read some of the tokens that were not read yet; return the logits after the last one, where that was read.

        Args:
            readings: The conversations, the oldest first. If the arena cannot hold all of them, the youngest wait.

        Raises ValueError: the oldest one alone has more than `most_tokens`.
        """
        chosen = self._choose(readings)
        logits: dict[Reading, torch.Tensor] = {}
        for group in (
            {each: count for each, count in chosen.items() if count == 1},
            {each: count for each, count in chosen.items() if count > 1},
        ):
            if group:
                logits |= self._read(list(group), list(group.values()))
        return logits

    def keep(self, reading: Reading) -> None:
        """Keep what was read of a conversation that rests, for the next one that begins with the same tokens."""
        if reading._state is not None:
            self.prefixes.put(reading.tokens[: reading.read], reading._state)
            reading._state = None

    def _choose(self, readings: Sequence[Reading]) -> dict[Reading, int]:
        """Return how many tokens each conversation reads in this step; the others rest, and leave their memory."""
        chosen: dict[Reading, int] = {}
        resting = []
        units, prompt = 0, self._most_prompt
        for reading in readings:
            if resting or (reading._state is None and not prompt):
                resting.append(reading)
                continue
            if reading._state is None:
                found, reading._state = self.prefixes.longest(reading.tokens[:-1])
                reading.kept = found if reading.kept is None else reading.kept
            count = len(reading.tokens) - reading.read
            if count > 1:
                count = min(count, prompt)
                prompt -= count
            # One more than its tokens need: the last unit of a state that others continue, too, is copied.
            needed = _units(reading.read + count) + 1
            if units + needed > self.arena.capacity:
                resting.append(reading)
                continue
            units += needed
            if count:
                chosen[reading] = count
        if not chosen:
            raise ValueError(
                f"the keys and values of {len(readings[0].tokens)} tokens do not fit into"
                f" {self.arena.capacity * self.arena.unit_bytes} bytes, where there is room for {self.most_tokens}"
            )
        for reading in resting:
            self.keep(reading)
        self.prefixes.make_room(
            sum(_units(each.read + count) + 1 - _units_on_device(each) for each, count in chosen.items())
        )
        return chosen

    def _read(self, readings: list[Reading], counts: list[int]) -> dict[Reading, torch.Tensor]:
        width = max(counts)
        states = [reading._state for reading in readings]
        past = self.arena.gather(states)
        lengths = self.arena.lengths(states)
        longest = max(reading.read for reading in readings)
        device = lengths.device
        ids = torch.zeros((len(readings), width), dtype=torch.int64)
        for row, (reading, count) in enumerate(zip(readings, counts, strict=True)):
            ids[row, :count] = torch.tensor(reading.tokens[reading.read : reading.read + count])
        time = torch.arange(longest, device=device)
        if self._needs_no_gaps:
            is_past = time >= longest - lengths[:, None]
            past = {name: _at_the_end(tensor, lengths) for name, tensor in past.items()}
        else:
            is_past = time < lengths[:, None]
        is_new = torch.arange(width) < torch.tensor(counts)[:, None]
        cache = self._cache(past) if longest else DynamicCache()
        output = self._run(
            ids,
            cache,
            attention_mask=torch.cat([is_past, is_new.to(device)], 1).long(),
            position_ids=lengths[:, None] + torch.arange(width, device=device),
            logits_to_keep=torch.tensor(sorted({count - 1 for count in counts}), device=device),
        )
        grown = self.arena.append(states, self._entries(cache, longest), counts)
        for reading, state in zip(readings, grown, strict=True):
            reading._state = state
        logits = output.logits
        if "logits_to_keep" in self._takes:
            place = {position: index for index, position in enumerate(sorted({count - 1 for count in counts}))}
        else:
            place = {position: position for position in range(width)}
        return {
            reading: logits[row, place[count - 1]]
            for row, (reading, count) in enumerate(zip(readings, counts, strict=True))
            if reading.read == len(reading.tokens)
        }

    def _run(self, ids: torch.Tensor, cache: DynamicCache, **arguments: torch.Tensor) -> Any:
        device = self.model.device
        given = {name: value.to(device) for name, value in arguments.items() if name in self._takes}
        with torch.inference_mode():
            return self.model(input_ids=ids.to(device), past_key_values=cache, use_cache=True, **given)

    def _cache(self, past: dict[str, torch.Tensor]) -> DynamicCache:
        """Return gathered keys and values as the model takes them."""
        layers: dict[int, DynamicLayer] = {}
        for group in self._layers:
            for place, number in enumerate(group.numbers):
                layer = layers[number] = DynamicLayer()
                layer.lazy_initialization(past[group.keys], past[group.values])
                layer.keys, layer.values = past[group.keys][:, place], past[group.values][:, place]
        cache = DynamicCache()
        cache.layers = [layers[number] for number in sorted(layers)]
        return cache

    def _entries(self, cache: DynamicCache, longest: int) -> dict[str, torch.Tensor]:
        """Return the keys and values that a step has added, as the arena takes them."""
        entries = {}
        for group in self._layers:
            layers = [cache.layers[number] for number in group.numbers]
            entries[group.keys] = torch.stack([layer.keys[:, :, longest:] for layer in layers], 1)
            entries[group.values] = torch.stack([layer.values[:, :, longest:] for layer in layers], 1)
        return entries


def _units(tokens: int) -> int:
    return -(-tokens // UNIT)


def _units_on_device(reading: Reading) -> int:
    return 0 if reading._state is None else len(reading._state.units)


def _at_the_end(tensor: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Move the entries of each row to the end of the time, so that what follows them is next to them."""
    time = tensor.shape[1 + _TIME]
    source = (torch.arange(time, device=tensor.device) - (time - lengths)[:, None]).clamp_(min=0)
    shape = [len(lengths), *[1] * (tensor.dim() - 1)]
    shape[1 + _TIME] = time
    return tensor.gather(1 + _TIME, source.view(shape).expand_as(tensor))
