"""`KeptPrefixes`: the keys and values of conversations that rest, found again by the tokens that they are of.

A conversation that continues finds those of all its tokens, a fork those up to where it leaves the other one, and a
client that sends its whole history those of the part that was seen before. Nothing depends on what is kept here: what
is missing is read again.

They are a radix tree, as in SGLang (Zheng et al., 2024): each node has the keys and values of some tokens, which
follow those of its parent. What conversations have in common is kept once. Sums of bytes are kept up to date, so that
nothing but a look-up depends on the tree, and that only on the nodes which it passes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from chat_layout import KeyValues, Layout

_FOUR_BYTES = "I"  # an unsigned integer of an array


class _Node:
    """Some tokens, which follow those of the parent, and their keys and values, [layers, heads, tokens, size]."""

    __slots__ = ("children", "key_values", "parent", "tokens")

    def __init__(self, parent: _Node | None, tokens: array[int], key_values: KeyValues) -> None:
        self.parent, self.tokens, self.key_values = parent, tokens, key_values
        #: By their first token.
        self.children: dict[int, _Node] = {}


class KeptPrefixes:
    """Keys and values by their tokens, the least recently used first to go: to the host's memory, then for good.

    Args:
        layout: What a model keeps of a token.
        most_bytes: What they may take of the device's memory, until `limit` changes it.
        most_host_bytes: What they may take of the host's memory.

    Attributes:
        device_bytes: What they take of the device's memory.
        host_bytes: What they take of the host's memory.
    """

    def __init__(self, layout: Layout, most_bytes: int, most_host_bytes: int) -> None:
        self._layout = layout
        self._most_bytes, self._most_host_bytes = most_bytes, most_host_bytes
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._root = _Node(None, array(_FOUR_BYTES), [])
        # A parent is always used after its children are, and has at least as good a place as they have. So the first
        # node of a tier, the least recently used one, has no children in it.
        self._on_device: OrderedDict[_Node, None] = OrderedDict()
        self._on_host: OrderedDict[_Node, None] = OrderedDict()
        self.device_bytes = self.host_bytes = 0

    def __len__(self) -> int:
        """Return how many there are that no other one continues."""
        return sum(not node.children for tier in (self._on_device, self._on_host) for node in tier)

    def matching(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens are kept, from the first on."""
        return sum(count for _, count in self._path(array(_FOUR_BYTES, tokens)))

    def copy_longest(self, tokens: Sequence[int], target: KeyValues) -> int:
        """Copy those of the most of these tokens from the first on; return how many tokens."""
        path = self._path(array(_FOUR_BYTES, tokens))
        self._bring_to_device([node for node, _ in path])
        start = 0
        for node, count in path:
            for from_, to in zip(node.key_values, target, strict=True):
                to[:, :, start : start + count] = from_[:, :, :count]
            start += count
        return start

    def put(self, tokens: Sequence[int], source: KeyValues) -> None:
        """Keep a copy of the keys and values of tokens, apart from what is kept already."""
        sought = array(_FOUR_BYTES, tokens)
        self._bring_to_device([node for node, _ in self._path(sought)])
        path = self._path(sought)
        node, start = (path[-1][0] if path else self._root), sum(count for _, count in path)
        if start == len(sought):
            return
        if path and path[-1][1] < len(node.tokens):
            node = self._split(node, path[-1][1])
        # What this one alone continues becomes a part of it, unless it is longer: so a conversation of many turns has
        # few nodes.
        while node.parent is not None and not node.children and len(node.tokens) <= len(sought) - start:
            start -= len(node.tokens)
            shorter, node = node, node.parent
            self._drop(shorter)
        self._add(node, sought[start:], [tensor[:, :, start : len(sought)] for tensor in source])

    def forget(self, tokens: Sequence[int]) -> None:
        """Forget what is kept of these tokens, apart from what other conversations have in common with them."""
        for node, _ in reversed(self._path(array(_FOUR_BYTES, tokens))):
            if node.children:
                break
            self._drop(node)

    def limit(self, most_bytes: int) -> None:
        """Take no more than so many bytes of the device's memory from now on."""
        self._most_bytes = most_bytes
        self._shrink()

    def _shrink(self) -> None:
        """Move what was not used for the longest time to the host, and forget what the host has no room for."""
        while self.device_bytes > self._most_bytes or self.host_bytes > self._most_host_bytes:
            if self.host_bytes > self._most_host_bytes:
                self._drop(next(iter(self._on_host)))
                continue
            node = next(iter(self._on_device))
            if self._bytes(node) > self._most_host_bytes:
                self._drop(node)
            else:
                self._count(node, self._on_host)
                node.key_values = [tensor.to("cpu") for tensor in node.key_values]

    def _bring_to_device(self, path: list[_Node]) -> None:
        """Use nodes, each of which continues the one before, and bring them to the device as far as there is room."""
        absent = [node for node in path if node in self._on_host]
        for node in absent:
            self._count(node, self._on_device)
        if path:
            self._use(path[-1])
        self._shrink()
        for node in absent:
            if node in self._on_device:
                node.key_values = [tensor.to(self._layout.device) for tensor in node.key_values]

    def _count(self, node: _Node, tier: OrderedDict[_Node, None] | None) -> None:
        """Count a node in a tier, as the last one that was used, and no longer in the one where it was, if any."""
        size = self._bytes(node)
        if node in self._on_device:
            del self._on_device[node]
            self.device_bytes -= size
        elif node in self._on_host:
            del self._on_host[node]
            self.host_bytes -= size
        if tier is self._on_device:
            self.device_bytes += size
        elif tier is self._on_host:
            self.host_bytes += size
        if tier is not None:
            tier[node] = None

    def _bytes(self, node: _Node) -> int:
        return len(node.tokens) * self._layout.token_bytes

    def _path(self, tokens: array[int]) -> list[tuple[_Node, int]]:
        """Return the nodes that begin with the most of these tokens, and how many tokens of each."""
        path: list[tuple[_Node, int]] = []
        node, start = self._root, 0
        while start < len(tokens) and (child := node.children.get(tokens[start])) is not None:
            count = _common(child.tokens, tokens[start : start + len(child.tokens)])
            path.append((child, count))
            node, start = child, start + count
            if count < len(child.tokens):
                break
        return path

    def _use(self, node: _Node) -> None:
        """Make a node, and those that it continues, the most recently used ones."""
        while node.parent is not None:
            (self._on_device if node in self._on_device else self._on_host).move_to_end(node)
            node = node.parent

    def _add(self, parent: _Node, tokens: array[int], key_values: KeyValues) -> None:
        tier = self._on_host if parent in self._on_host else self._on_device
        device = "cpu" if tier is self._on_host else self._layout.device
        node = _Node(parent, tokens, [tensor.to(device, copy=True) for tensor in key_values])
        parent.children[tokens[0]] = node
        self._count(node, tier)
        self._use(node)
        self._shrink()

    def _split(self, node: _Node, count: int) -> _Node:
        """Split the first tokens of a node off as its parent, and return that."""
        parent = node.parent
        assert parent is not None, "the root has no tokens"
        first = _Node(parent, node.tokens[:count], [tensor[:, :, :count].clone() for tensor in node.key_values])
        node.tokens, node.parent = node.tokens[count:], first
        node.key_values = [tensor[:, :, count:].clone() for tensor in node.key_values]
        parent.children[first.tokens[0]] = first
        first.children[node.tokens[0]] = node
        (self._on_device if node in self._on_device else self._on_host)[first] = None
        self._use(node)
        return first

    def _drop(self, node: _Node) -> None:
        """Forget a node, with all that continue it."""
        assert node.parent is not None, "the root stays"
        del node.parent.children[node.tokens[0]]
        dropped = [node]
        while dropped:
            each = dropped.pop()
            dropped.extend(each.children.values())
            self._count(each, None)


def _common(tokens: array[int], others: array[int]) -> int:
    """Return with how many equal tokens both begin."""
    if tokens == others:
        return len(tokens)
    for count, (one, other) in enumerate(zip(tokens, others, strict=False)):
        if one != other:
            return count
    return min(len(tokens), len(others))
