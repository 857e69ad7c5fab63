"""A handler sleeps and wakes: what the worker calls, in which order."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ts.context import Context
from ts.features.sleeping.sleeper import Nap, Sleeper, prepare
from ts.jobs.errors import LoadError
from ts.protocol.messages import Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service

CONTEXT = cast("Context", None)


class Handler:
    """Notes how it is called, and fails to do what it is told to."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self.failing = {*failing}

    def sleep(self) -> None:
        self._called("sleep")

    def wake(self) -> None:
        self._called("wake")

    def handle(self, data: Any, context: Context) -> list[str]:
        self._called("handle")
        return ["answer"] * len(data)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise RuntimeError(name)


def sleeper_of(handler: Handler) -> Sleeper:
    return Sleeper(handler.sleep, handler.wake, handler.handle)


def test_it_wakes_before_the_next_batch_and_only_then() -> None:
    handler = Handler()
    sleeper = sleeper_of(handler)
    assert sleeper([{"body": b"x"}], CONTEXT) == ["answer"]
    for _ in range(2):
        assert sleeper([Nap()], CONTEXT) == [""]
    assert sleeper([{}, {}], CONTEXT) == ["answer", "answer"]
    sleeper([{}], CONTEXT)
    assert handler.calls == ["handle", "sleep", "wake", "handle", "handle"]


def test_one_that_fails_to_sleep_wakes_all_the_same() -> None:
    handler = Handler("sleep")
    sleeper = sleeper_of(handler)
    with pytest.raises(RuntimeError, match="sleep"):
        sleeper([Nap()], CONTEXT)
    sleeper([{}], CONTEXT)
    assert handler.calls == ["sleep", "wake", "handle"]


def test_one_that_fails_to_wake_is_asked_again_for_the_next_batch() -> None:
    handler = Handler("wake")
    sleeper = sleeper_of(handler)
    sleeper([Nap()], CONTEXT)
    with pytest.raises(RuntimeError, match="wake"):
        sleeper([{}], CONTEXT)
    handler.failing.clear()
    assert sleeper([{}], CONTEXT) == ["answer"]
    assert handler.calls == ["sleep", "wake", "wake", "handle"]


@pytest.mark.parametrize("handler", [None, SimpleNamespace(sleep=print)], ids=["a function", "no wake"])
def test_a_handler_without_the_methods_is_not_loaded(handler: object) -> None:
    service = cast("Service", SimpleNamespace(handler=handler, entry_point=print))
    with pytest.raises(LoadError, match=r"class with the methods sleep\(self\) and wake\(self\)"):
        prepare(service, cast("TorchServeHandler", None), cast("Load", {}), True)
