"""A handler sleeps and wakes when the server asks it to: what it answers."""

from types import SimpleNamespace
from typing import cast

import pytest

from ts.fleet.memory_budget.sleeper import prepare
from ts.jobs.errors import LoadError
from ts.protocol.messages import Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service


class Handler:
    """Notes how it is called, and fails to do what it is told to."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self.failing = {*failing}

    def sleep(self) -> None:
        self._called("sleep")

    def wake(self) -> None:
        self._called("wake")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise RuntimeError(f"{name} is not possible")


def prepared(handler: object) -> TorchServeHandler:
    """Return what runs a handler that can sleep."""
    runtime = cast("TorchServeHandler", SimpleNamespace(answers={}))
    prepare(cast("Service", SimpleNamespace(handler=handler)), runtime, cast("Load", {}), True)
    return runtime


def test_it_says_how_long_it_took() -> None:
    handler = Handler()
    runtime = prepared(handler)
    for question in ("sleep", "wake"):
        assert 0.0 <= runtime.answers[question]() < 60.0
    assert handler.calls == ["sleep", "wake"]


@pytest.mark.parametrize("question", ["sleep", "wake"])
def test_it_says_what_was_raised(question: str) -> None:
    runtime = prepared(Handler(question))
    assert runtime.answers[question]() == f"RuntimeError: {question} is not possible"


@pytest.mark.parametrize("handler", [None, SimpleNamespace(sleep=print)], ids=["a function", "no wake"])
def test_a_handler_without_the_methods_is_not_loaded(handler: object) -> None:
    with pytest.raises(LoadError, match=r"class with the methods sleep\(self\) and wake\(self\)"):
        prepared(handler)
