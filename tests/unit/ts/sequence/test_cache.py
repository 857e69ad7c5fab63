"""SequenceCache as a mapping: what lru.LRU does, and what a store changes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

from ts.protocol.messages import EndedSequence
from ts.sequence import SequenceCache, sequence_cache
from ts.sequence.log_state import LogState
from ts.sequence.state_size import size_of


def context(**settings: Any) -> Any:
    config = {"maxNumSequence": 5, "handler": {"max_length": 8}}
    return SimpleNamespace(
        cache_settings=settings or None,
        sequence_cache=None,
        model_yaml_config=config,
        system_properties={"gpu_id": None},
    )


@pytest.mark.parametrize("kind", ["lru", "cache"])
def test_it_does_what_lru_does(kind: str) -> None:
    lru = pytest.importorskip("lru")
    cache = lru.LRU(3) if kind == "lru" else SequenceCache(context(capacity=3))
    for number, name in enumerate("abc"):
        cache[name] = number
    assert cache["a"] == 0
    cache["d"] = 3
    assert cache.keys() == ["d", "a", "c"]
    assert "b" not in cache
    assert cache.get("b") is None
    assert cache.get("b", 7) == 7
    assert (cache.items(), cache.values()) == ([("d", 3), ("a", 0), ("c", 2)], [3, 0, 2])
    assert (cache.peek_first_item(), cache.peek_last_item()) == (("d", 3), ("c", 2))
    assert (cache.pop("a"), cache.pop("a", None), len(cache), cache.get_size()) == (0, None, 2, 3)
    cache.update({"c": 5})
    assert cache.setdefault("e", 1) == 1
    del cache["d"]
    cache.set_size(1)
    assert cache.keys() == ["e"]
    with pytest.raises(KeyError):
        cache["d"]
    cache.clear()
    assert not len(cache)


def test_without_settings_there_is_room_for_as_many_as_may_be_open() -> None:
    assert SequenceCache(context()).get_size() == 5


def test_every_open_sequence_whose_state_is_lost_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_cache, "_REMEMBERED_LOSSES", 2)
    cache = SequenceCache(context(capacity=1))
    for each in "abcde":
        cache[each] = 1
    assert [cache.is_lost(each) for each in "abcde"] == [True, True, True, True, False]


def test_a_handler_has_one() -> None:
    shared = context()
    SequenceCache(shared)
    with pytest.raises(ValueError, match="a handler has one SequenceCache"):
        SequenceCache(shared)


def test_with_a_store_states_belong_to_the_steps_that_run() -> None:
    cache = SequenceCache(context(store="file", capacity=1))
    running = {"a", "b"}
    cache.run(running)
    cache["a"], cache["b"] = 1, 2
    assert len(cache) == 2  # no state of a running step makes room
    with pytest.raises(ValueError, match="the state of 'c' cannot be set now"):
        cache["c"] = 3
    running.clear()
    with pytest.raises(ValueError, match="cannot be set now"):
        cache["a"] = 3


class Said(LogState):
    """All texts that were appended."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts


@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_log_that_grows_is_not_measured_again_as_a_whole(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    measured = list[Any]()

    def measure(value: Any, limit: int) -> int:
        measured.append(value)
        return size_of(value, limit)

    monkeypatch.setattr(sequence_cache, "size_of", measure)
    cache = SequenceCache(context(store=store, most_memory=100_000))
    cache.run({"a"})

    def step(said: Said, *appended: str) -> None:
        cache["a"] = said
        for text in appended:
            cache.append("a", text)
        if store == "memory":
            assert cache.excess("a") is None
            cache.keep(["a"])
        else:
            cache.committed("a")

    cache.put("a", Said())
    empty = cache.used_bytes
    step(Said("x" * 1000), "x" * 1000)
    step(Said("x" * 1000, "y" * 2000), "y" * 2000)
    assert empty + 3000 < cache.used_bytes < empty + 3500
    assert [type(value) for value in measured].count(Said) == 1, "when it was read"
    step(Said())
    assert cache.used_bytes == empty, "without an entry it is another one"


TOTALS = """
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context)

        def handle(self, data, context):
            ids = [context.get_sequence_id(index) for index in range(len(data))]
            for sequence_id in ids:
                self.cache[sequence_id] = self.cache.get(sequence_id, 0) + 1
            return [self.cache.get(sequence_id) for sequence_id in ids]
"""


def test_without_a_store_a_state_that_had_to_make_room_is_told_as_lost(make_worker: Callable[..., Worker]) -> None:
    settings = {
        "store": "memory",
        "durable": False,
        "capacity": 2,
        "owner": "",
        "lease": 10.0,
        "lifetime": 60.0,
        "kept": 3,
    }
    worker = make_worker(
        TOTALS, sequences=True, cache={**settings, "restart_expired": False, "require_start": False, "most_ids": 100}
    )

    def step(name: str, *more: tuple[str, str]) -> Any:
        (result,) = worker.infer(row(f"j{name}", b"", headers=[("ts_request_sequence_id", name), *more]))
        return (result[2], result.news.cause) if result[6] is not None else result[5]

    assert [step(name) for name in "abcb"] == [b"1", b"1", b"1", b"2"]
    assert step("a") == (410, "sequence_lost")
    assert step("a", ("ts_request_sequence_start", "true")) == b"1"
    assert step("c") == (410, "sequence_lost")
    worker.runtime.end_sequences([EndedSequence("c", "evicted", 0.0)])
    assert step("c") == b"1"
