"""handlers/echo: every row gets back what it brought."""

from types import ModuleType
from typing import Any

HANDLER = "echo/echo_handler.py"


def test_each_row_gets_its_own_value_back(handler_module: ModuleType) -> None:
    rows: list[dict[str, Any]] = [
        {"body": bytearray(b"\x00raw")},
        {"data": "text"},
        {"body": {"a": 1}},
        {"part": b"x"},
        {},
    ]
    assert handler_module.handle(rows, None) == [bytearray(b"\x00raw"), "text", {"a": 1}, b"x", b""]


def test_it_loads_without_rows_and_without_torch(handler_module: ModuleType) -> None:
    assert handler_module.handle(None, None) == []
    assert "torch" not in vars(handler_module)
