"""`Layout`: which keys and values a model keeps of a token, and tensors that hold those of many tokens.

Layers whose keys and values have the same shapes share a tensor of keys and one of values. So the keys and values of a
conversation are a list of two tensors, each [layers, heads, tokens, size], for nearly all models.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import DynamicLayer

#: Keys and values of some tokens: for each group of layers the keys, then the values, [layers, heads, tokens, size].
KeyValues = list[torch.Tensor]


class _Layers(NamedTuple):
    """Layers whose keys, and whose values, have the same shape [heads, size]."""

    numbers: list[int]
    keys: torch.Size
    values: torch.Size
    dtype: torch.dtype


class Layout:
    """What a model keeps of a token.

    Args:
        layers: What its cache has after one token, by layer.
        kind: The kind of the model, for errors.

    Attributes:
        count: The layers.
        token_bytes: The bytes of one token's keys and values.
        device: Where they are.

    Raises ValueError: the model keeps something else than the keys and values of each token.
    """

    def __init__(self, layers: Sequence[Any], kind: str) -> None:
        if not layers:
            raise ValueError(f"this model ({kind}) keeps no keys and values, and handlers/chat knows nothing else")
        shapes: dict[tuple[torch.Size, torch.Size, torch.dtype], list[int]] = {}
        for number, layer in enumerate(layers):
            if type(layer) is not DynamicLayer or layer.get_seq_length() != 1:
                raise ValueError(
                    f"layer {number} of this model ({kind}) keeps a {type(layer).__name__}, and"
                    " handlers/chat knows only layers that keep the keys and values of each token"
                )
            shape = (layer.keys[0, :, 0].shape, layer.values[0, :, 0].shape, layer.keys.dtype)
            shapes.setdefault(shape, []).append(number)
        self._groups = [_Layers(numbers, *shape) for shape, numbers in shapes.items()]
        self.count = len(layers)
        self.device = layers[0].keys.device
        self.token_bytes = sum(
            len(group.numbers) * (prod(group.keys) + prod(group.values)) * group.dtype.itemsize
            for group in self._groups
        )

    def empty(self, slots: int, tokens: int) -> KeyValues:
        """Return memory for the keys and values of so many conversations: [slots, layers, heads, tokens, size]."""
        return [
            torch.empty((slots, len(group.numbers), shape[0], tokens, shape[1]), dtype=group.dtype, device=self.device)
            for group in self._groups
            for shape in (group.keys, group.values)
        ]

    def by_layer(self, memory: KeyValues) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and the values of each layer, each [slots, heads, tokens, size], in the same memory."""
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for place, group in enumerate(self._groups):
            keys, values = memory[2 * place], memory[2 * place + 1]
            found |= {number: (keys[:, index], values[:, index]) for index, number in enumerate(group.numbers)}
        return [found[number] for number in range(self.count)]
