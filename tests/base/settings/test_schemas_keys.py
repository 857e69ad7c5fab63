"""Keys of YAML maps that are no text are told like any other wrong key, wherever they stand; the other keys count."""

from typing import Annotated

import pytest

from torchserve_py.base.settings.schemas.schema import ClosedSchema, Schema, key, read
from torchserve_py.base.settings.schemas.values import Nested
from torchserve_py.base.settings.schemas.yaml_mapping import parse_yaml_mapping


class Colours(ClosedSchema):
    red: int = 0


class Room(ClosedSchema):
    size: int = 0
    colours: Annotated[Colours, Nested()] = key(None, "the colours", "", Colours())


class Open(Schema):
    size: int = 0


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("null", "None"),
        ("7", "[7]"),
        ("on", "[True]"),
        ("no", "[False]"),
        ("1.5", "1.5"),
        ("2024-01-31", "datetime.date(2024, 1, 31)"),
    ],
)
def test_a_key_that_is_no_text_is_told_and_the_others_count(written: str, told: str) -> None:
    message = f"{told} is a key that is not text; put it in quotes"
    values, problems = read(Room, parse_yaml_mapping(f"{written}: 1\nsize: 2".encode()).values)
    assert values.size == 2
    assert list(problems.values()) == [message]
    inner = parse_yaml_mapping(f"size: 2\ncolours:\n  {written}: 1\n  red: 3".encode())
    values, problems = read(Room, inner.values, lines=inner.lines)
    assert (values.size, values.colours.red) == (2, 0)
    dot = "" if told.startswith("[") else "."
    assert list(problems.values()) == [f"line 2: colours{dot}{message}"]


def test_where_unknown_keys_are_ignored_one_that_is_no_text_is_too() -> None:
    values, problems = read(Open, {None: 1, True: 2, "size": 3, "else": 4})
    assert (values.size, problems) == (3, {})
    values, problems = read(Open, {None: 1, True: 2, "size": "many"})
    assert (values.size, list(problems)) == (0, ["size"])
