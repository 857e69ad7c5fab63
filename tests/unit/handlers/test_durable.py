"""handlers/durable: totals per sequence, with whatever is beneath the cache."""

from types import ModuleType
from typing import Any

import pytest

HANDLER = "durable/durable_handler.py"


@pytest.fixture
def handler(handler_module: ModuleType, stateful_context: Any) -> tuple[Any, Any]:
    context = stateful_context({"maxNumSequence": 3})
    handler = handler_module.DurableHandler()
    handler.initialize(context)
    return handler, context


def answers(handler: tuple[Any, Any], *numbers: tuple[str, Any]) -> list[str]:
    served, context = handler
    results: list[str] = context.run(served, [({"ts_request_sequence_id": name}, number) for name, number in numbers])
    return results


def test_each_sequence_has_its_total(handler: tuple[Any, Any]) -> None:
    assert answers(handler, ("s", b"5"), ("t", "7")) == ["5", "7"]
    assert answers(handler, ("t", 1), ("s", bytearray(b"-2"))) == ["8", "3"]


def test_zero_ends_a_sequence(handler: tuple[Any, Any]) -> None:
    answers(handler, ("s", b"5"))
    assert answers(handler, ("s", b"0")) == ["5"]
    assert handler[1].response_headers[0] == {"ts_request_sequence_end": "s"}


def test_what_is_no_number_changes_nothing(handler: tuple[Any, Any]) -> None:
    refused, total = answers(handler, ("s", b"five"), ("t", b"5"))
    assert (refused.status, total) == (400, "5")  # type: ignore[attr-defined]
    assert answers(handler, ("s", b"1")) == ["1"]
