"""handlers/chat: keys and values that are kept are those of their tokens, in bounded memory; places have no gaps."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.handlers.conftest import HANDLERS, load_module

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

MOST_TOKENS = 200


@pytest.fixture(scope="module")
def chat() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HANDLERS / "chat"))
        names = ("chat_layout", "chat_places", "chat_prefixes")
        yield SimpleNamespace(**{name: load_module(HANDLERS / "chat" / f"{name}.py") for name in names})


def layout_of(chat: Any) -> Any:
    """Two layers with a head of one number each: 16 bytes for a token."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), layer)
    return chat.chat_layout.Layout(cache.layers, "test")


def key_values_of(layout: Any, tokens: list[int]) -> Any:
    """Keys and values of which each says what all tokens up to its own were."""
    (memory,) = ([tensor[0] for tensor in layout.empty(1, MOST_TOKENS)],)
    for count in range(len(tokens)):
        for tensor in memory:
            tensor[:, :, count] = hash(tuple(tokens[: count + 1])) % 100_003
    return memory


def found_of(layout: Any, kept: Any, tokens: list[int]) -> int:
    """Return how many of the tokens are kept, after checking their keys and values."""
    target = [tensor[0] for tensor in layout.empty(1, MOST_TOKENS)]
    count: int = kept.copy_longest(tokens, target)
    for mine, right in zip(target, key_values_of(layout, tokens), strict=True):
        assert torch.equal(mine[:, :, :count], right[:, :, :count])
    return count


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@given(
    calls=st.lists(st.tuples(st.sampled_from(("put", "find", "forget", "limit")), TOKENS), max_size=30),
    most=st.integers(1, 80),
    most_host=st.integers(0, 60),
)
def test_what_is_found_is_right_and_what_is_kept_is_bounded(
    chat: Any, calls: list[Any], most: int, most_host: int
) -> None:
    layout = layout_of(chat)
    size = layout.token_bytes
    kept = chat.chat_prefixes.KeptPrefixes(layout, most * size, most_host * size)
    for name, tokens in calls:
        if name == "put":
            kept.put(tokens, key_values_of(layout, tokens))
            if most >= len(tokens):
                assert found_of(layout, kept, tokens) == len(tokens), "the last one is there"
        elif name == "find":
            wanted = kept.matching(tokens)
            assert found_of(layout, kept, tokens) == wanted
        elif name == "forget":
            kept.forget(tokens)
        else:
            most = len(tokens)
            kept.limit(most * size)
        assert 0 <= kept.device_bytes <= most * size
        assert 0 <= kept.host_bytes <= most_host * size
        assert_counts(kept)


def assert_counts(kept: Any) -> None:
    """The sums are those of the nodes; a parent is on the device if a child is, and is used after it."""
    for tier, size in ((kept._on_device, kept.device_bytes), (kept._on_host, kept.host_bytes)):
        assert sum(map(kept._bytes, tier)) == size
        order = list(tier)
        for place, node in enumerate(order):
            assert node.parent.children[node.tokens[0]] is node
            if node.parent.parent is not None:
                assert node.parent in kept._on_device or node.parent in tier
                assert node.parent not in order[:place]


def test_a_common_prefix_is_kept_once_and_a_conversation_has_few_nodes(chat: Any) -> None:
    layout = layout_of(chat)
    kept = chat.chat_prefixes.KeptPrefixes(layout, 1 << 20, 0)
    system = [9] * 50
    for number in range(4):
        tokens = list(system)
        for turn in range(20):
            tokens += [number, turn, 1]
            kept.put(tokens, key_values_of(layout, tokens))
    assert kept.device_bytes == (50 + 4 * 60) * layout.token_bytes
    assert len(kept) == 4
    assert len(kept._on_device) < 4 * 8


def test_the_least_recently_used_goes_first_and_comes_back_from_the_host(chat: Any) -> None:
    layout = layout_of(chat)
    size = layout.token_bytes
    kept = chat.chat_prefixes.KeptPrefixes(layout, 40 * size, 20 * size)
    for word in range(3):
        kept.put([word] * 20, key_values_of(layout, [word] * 20))
    assert (kept.device_bytes, kept.host_bytes) == (40 * size, 20 * size)
    assert found_of(layout, kept, [0] * 20) == 20
    kept.put([3] * 20, key_values_of(layout, [3] * 20))
    assert [kept.matching([word] * 20) for word in range(4)] == [20, 0, 20, 20]
    assert (kept.device_bytes, kept.host_bytes) == (40 * size, 20 * size)


def test_places_stay_side_by_side_with_what_is_in_them(chat: Any) -> None:
    layout, order = layout_of(chat), random.Random(3)
    places = chat.chat_places.Places(layout, 32 * 64 * layout.token_bytes)  # blocks of 64 tokens
    used: dict[Any, int] = {}

    def fill(place: Any, number: int) -> None:
        place.clear(0)
        assert all(bool((tensor == 0).all()) for tensor in place.key_values), "what attention masks is no NaN"
        for tensor in place.key_values:
            tensor[:, :, :10] = number

    for number in range(300):
        if used and order.random() < 0.45:
            place = order.choice(list(used))
            for tensor in place.key_values:
                tensor.fill_(torch.nan)
            del used[place]
            places.give_back(place)
        else:
            place = places.take(order.choice((16, 24, 128)))
            fill(place, number)
            used[place] = number
        if used and order.random() < 0.2:
            place = order.choice(list(used))
            used[places.move(place, chat.chat_places.capacity_for(place.capacity + 1), 10)] = used.pop(place)
        for place, content in used.items():
            assert all(bool((tensor[:, :, :10] == content).all()) for tensor in place.key_values)
            assert all(bool((tensor[:, :, 10:] == 0).all()) for tensor in place.key_values)
            assert place.slot < places.live(place)
        by_block = {id(place.block): places.live(place) for place in used}
        assert sum(by_block.values()) == len(used), "no place in use is missing, and none is counted that is not"


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 16), (16, 16), (17, 24), (25, 32), (33, 48), (49, 64), (97, 128)])
def test_places_are_at_most_half_as_large_again_as_needed(chat: Any, tokens: int, capacity: int) -> None:
    assert chat.chat_places.capacity_for(tokens) == capacity
