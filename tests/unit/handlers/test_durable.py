"""handlers/durable: totals per sequence, with whatever is beneath the cache."""

from types import ModuleType
from typing import Any

import pytest

HANDLER = "durable/durable_handler.py"


@pytest.fixture
def handler(handler_module: ModuleType, fake_context: Any) -> tuple[Any, Any]:
    context = fake_context({"maxNumSequence": 3})
    handler = handler_module.DurableHandler()
    handler.initialize(context)
    return handler, context


def answers(handler: tuple[Any, Any], *numbers: tuple[str, Any]) -> list[str]:
    served, context = handler
    context.next_batch([(f"r{idx}", {"ts_request_sequence_id": name}) for idx, (name, _) in enumerate(numbers)])
    results: list[str] = served.handle([{"body": number} for _, number in numbers], context)
    return results


def test_each_sequence_has_its_total(handler: tuple[Any, Any]) -> None:
    assert answers(handler, ("s", b"5"), ("t", "7")) == ["5", "7"]
    assert answers(handler, ("t", 1), ("s", bytearray(b"-2"))) == ["8", "3"]


def test_zero_ends_a_sequence(handler: tuple[Any, Any]) -> None:
    answers(handler, ("s", b"5"))
    assert answers(handler, ("s", b"0")) == ["5"]
    assert handler[1].response_headers[0] == {"ts_request_sequence_end": "s"}


def test_what_is_no_number_changes_nothing(handler: tuple[Any, Any]) -> None:
    assert answers(handler, ("s", b"five"), ("t", b"5"))[1] == "5"
    assert handler[1].status[0][0] == 400
    assert answers(handler, ("s", b"1")) == ["1"]


def test_the_cache_has_room_for_as_many_sequences_as_may_be_open(handler: tuple[Any, Any]) -> None:
    assert handler[0].totals.get_size() == 3
