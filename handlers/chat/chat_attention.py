"""Attention over the keys and values of many conversations, each in a place of its own, in one run of a model.

The tokens that a step reads, of whichever conversations, follow each other in one row, so the model wastes no time on
padding. Its cache is a `PackedStep`, which writes their keys and values to the places; and its attention, which
transformers lets us replace, reads them there. Rows of a block that read one token share one call.

Models that do not let us replace their attention, or whose attention needs more than keys, values, a scale and a
window, run one conversation at a time with `place_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import torch
from chat_places import Block, Place
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ts.jobs.device_copies import to_device

#: The name of this attention in transformers.
NAME: Final = "torchserve_chat"


class Part(NamedTuple):
    """Tokens of a conversation that one step reads.

    Attributes:
        place: Where its keys and values are.
        past: The tokens that it has read before.
        count: The tokens that it reads.
        live: The places in use of its block, the first ones.
    """

    place: Place
    past: int
    count: int
    live: int


class _Singles:
    """The conversations in one block that read one token."""

    def __init__(self, parts: Sequence[Part], tokens: Sequence[int], device: torch.device) -> None:
        self._layers, live = parts[0].place.block.layers, parts[0].live
        self._longest = max(part.past for part in parts) + 1
        self._dtype, self._masks = self._layers[0][0].dtype, dict[int | None, torch.Tensor]()
        slots = [part.place.slot for part in parts]
        # Others in the block, which read nothing or several tokens, get a token whose result nobody uses.
        query, lengths = [0] * live, [1] * live
        for slot, token, part in zip(slots, tokens, parts, strict=True):
            query[slot], lengths[slot] = token, part.past + 1
        rows = to_device(torch.tensor([slots, tokens, [part.past for part in parts]]), device)
        self._slots, self._tokens, self._positions = rows.unbind()
        self._query, self._lengths = to_device(torch.tensor([query, lengths]), device).unbind()

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        for memory, new in zip(self._layers[layer], (keys, values), strict=True):
            memory[self._slots, :, self._positions] = new.index_select(0, self._tokens)

    def attend(self, layer: int, query: torch.Tensor, out: torch.Tensor, window: int | None, scale: float) -> None:
        keys, values = (memory[: len(self._query), :, : self._longest] for memory in self._layers[layer])
        # Heads that share keys and values are queries of one head: so nothing is repeated.
        rows = query.index_select(0, self._query).unflatten(1, (keys.shape[1], -1))
        found = scaled_dot_product_attention(rows, keys, values, attn_mask=self._mask(window), scale=scale)
        out.index_copy_(0, self._tokens, found.flatten(1, 2).index_select(0, self._slots))

    def _mask(self, window: int | None) -> torch.Tensor:
        """Return what is added to the scores, [places, 1, 1, longest]: the same for all layers with this window."""
        if window not in self._masks:
            time, ends = torch.arange(self._longest, device=self._lengths.device), self._lengths[:, None]
            is_hidden = time >= ends if window is None else (time >= ends) | (time < ends - window)
            mask = torch.zeros(is_hidden.shape, dtype=self._dtype, device=time.device)
            self._masks[window] = mask.masked_fill_(is_hidden, -torch.inf)[:, None, None]
        return self._masks[window]


class _Piece:
    """A piece of one conversation's prompt."""

    def __init__(self, part: Part, first: int) -> None:
        self._past, self._end, self._count = part.past, part.past + part.count, part.count
        self._tokens = slice(first, first + part.count)
        slot = part.place.slot
        self._layers = [(keys[slot], values[slot]) for keys, values in part.place.block.layers]
        self._masks: dict[int | None, torch.Tensor | None] = {}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        for memory, new in zip(self._layers[layer], (keys, values), strict=True):
            memory[:, self._past : self._end] = new[self._tokens].transpose(0, 1)

    def attend(self, layer: int, query: torch.Tensor, out: torch.Tensor, window: int | None, scale: float) -> None:
        keys, values = (memory[None, :, : self._end] for memory in self._layers[layer])
        rows, mask = query[self._tokens].transpose(0, 1)[None], self._mask(window)
        found = scaled_dot_product_attention(
            rows, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        out[self._tokens] = found[0].transpose(0, 1)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """Return which keys each token sees, [tokens, keys]; None if these are the ones up to itself."""
        if window not in self._masks:
            device = self._layers[0][0].device
            key, token = torch.arange(self._end, device=device), torch.arange(self._past, self._end, device=device)
            mask = key <= token[:, None]
            if window is not None:
                mask &= key > token[:, None] - window
            is_plain = not self._past and (window is None or self._count <= window)
            self._masks[window] = None if is_plain else mask
        return self._masks[window]


class PackedStep(DynamicCache):
    """The cache of a run with tokens of several conversations, one after the other in one row.

    Args:
        parts: What is read, in the order of the tokens.
        device: Where the model is.
    """

    def __init__(self, parts: Sequence[Part], device: torch.device) -> None:
        super().__init__()
        self._readers: list[_Singles | _Piece] = []
        #: The layer that has written its keys and values, and attends next.
        self._layer = 0
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None
        #: How many layers have written, and how many have attended.
        self.updated = self.attended = 0
        singles: dict[Block, tuple[list[Part], list[int]]] = {}
        first = 0
        for part in parts:
            if part.count == 1:
                rows, tokens = singles.setdefault(part.place.block, ([], []))
                rows.append(part)
                tokens.append(first)
            else:
                self._readers.append(_Piece(part, first))
            first += part.count
        self._readers.extend(_Singles(rows, tokens, device) for rows, tokens in singles.values())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: the positions of the tokens are given."""
        return 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of a layer, each [1, heads, tokens, size], to the places."""
        self._layer, self._written = layer_idx, (key_states, value_states)
        self.updated += 1
        keys, values = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        for reader in self._readers:
            reader.write(layer_idx, keys, values)
        return key_states, value_states

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, scale: float
    ) -> torch.Tensor:
        """Return what the queries [1, heads, tokens, …] of the layer that was updated last find.

        The result is [1, tokens, heads, …]. Raises NotPacked: it is to read other keys and values than were written.
        """
        if self._written is None or key is not self._written[0] or value is not self._written[1]:
            raise NotPacked("it reads other keys and values than its cache keeps")
        self.attended += 1
        rows = query[0].transpose(0, 1)
        out = rows.new_empty((*rows.shape[:2], value.shape[-1]))
        for reader in self._readers:
            reader.attend(self._layer, rows, out, window, scale)
        return out[None]


_step: ContextVar[PackedStep | None] = ContextVar("_step", default=None)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' models ask for it; outside a packed step, as they do by themselves."""
    step = _step.get()
    if step is None:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
        return found, None
    for name in ("softcap", "s_aux", "position_bias"):
        if arguments.get(name) is not None:
            raise NotPacked(f"its attention has {name}")
    scale = arguments.get("scaling") or query.shape[-1] ** -0.5
    return step.attend(query, key, value, arguments.get("sliding_window"), scale), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)


class NotPacked(Exception):
    """The attention of a model needs what a packed step does not have; the message says what."""


def run(model: Any, cache: DynamicCache, **arguments: Any) -> Any:
    """Run a model; with a packed step as its cache, its attention has to be `NAME`. Raises NotPacked."""
    token = _step.set(cache if isinstance(cache, PackedStep) else None)
    try:
        return model(past_key_values=cache, use_cache=True, **arguments)
    finally:
        _step.reset(token)


class _PlaceLayer(DynamicLayer):
    """A layer's keys and values in a place, where further ones are written behind them."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, past: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._memory = keys, values
        self.keys, self.values = keys[:, :, :past], values[:, :, :past]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values, each [1, heads, tokens, size]; return all, in the place itself."""
        start, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        for memory, new in zip(self._memory, (key_states, value_states), strict=True):
            memory[:, :, start:end] = new
        self.keys, self.values = (memory[:, :, :end] for memory in self._memory)
        return self.keys, self.values


def place_cache(place: Place, past: int) -> DynamicCache:
    """Return the cache of a run with one conversation, whose keys and values stay where they are."""
    cache, row = DynamicCache(), slice(place.slot, place.slot + 1)
    cache.layers = [_PlaceLayer(keys[row], values[row], past) for keys, values in place.block.layers]
    return cache
