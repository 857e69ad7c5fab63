"""What users write is read against a schema: all that is wrong is told at once, and the rest is read."""

from typing import Annotated

import pytest
from pydantic import Field

from torchserve_py.base.settings.schemas.schema import ClosedSchema, Schema, read
from torchserve_py.base.settings.schemas.values import (
    Expected,
    Flag,
    Listed,
    Nested,
    Seconds,
    Text,
    Texts,
    choice,
    integer,
)


class Item(ClosedSchema):
    name: Annotated[str, Expected("a text", lambda value: isinstance(value, str))]


class Inner(Schema):
    ports: Annotated[int | None, integer(1, 9)] = Field(None, alias="the-ports")


class Outer(Schema):
    size: Annotated[int | None, integer(1)] = Field(None, alias="batchSize")
    kind: Annotated[str | None, choice("cpu", "gpu", "")] = None
    flag: Flag = None
    text: Text = None
    texts: Texts = None
    seconds: Seconds = None
    inner: Annotated[Inner, Nested("a map of options")] = Inner()
    items: Annotated[tuple[Annotated[Item, Nested()], ...], Listed("a list of items")] = ()


def test_right_values_are_read() -> None:
    given = {"batchSize": 2, "kind": "GPU", "flag": False, "texts": ["a"], "seconds": 1, "inner": {"the-ports": 3}}
    values, problems = read(Outer, {**given, "items": [{"name": "a"}], "text": None, "unknown": 1})
    assert not problems
    assert (values.size, values.kind, values.flag, values.text, values.texts) == (2, "gpu", False, None, ("a",))
    assert (values.seconds, values.inner.ports, values.items) == (1.0, 3, (Item(name="a"),))


def test_a_key_that_is_wrong_is_as_if_it_were_not_there() -> None:
    values, problems = read(Outer, {"batchSize": 0, "kind": "cpu"})
    assert list(problems) == ["batchSize"]
    assert (values.size, values.kind) == (None, "cpu")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batchSize": True}, "line 7: batchSize is True (bool), it must be an integer from 1"),
        ({"batchSize": "2"}, "line 7: batchSize is '2' (str), it must be an integer from 1"),
        ({"kind": "tpu"}, "kind is 'tpu' (str), it must be one of cpu, gpu, \"\""),
        ({"flag": 1}, "flag is 1 (int), it must be true or false"),
        ({"text": ""}, "text is '' (str), it must be a text"),
        ({"texts": ["a", 1]}, "texts is ['a', 1] (list), it must be a list of texts"),
        ({"seconds": 0}, "seconds is 0 (int), it must be a number of seconds, more than 0"),
        ({"inner": 3}, "line 9: inner is 3 (int), it must be a map of options"),
        ({"inner": {"the-ports": 10}}, "line 9: inner.the-ports is 10 (int), it must be an integer from 1 to 9"),
        ({"items": {}}, "items is {} (dict), it must be a list of items"),
        ({"items": [{"name": "a"}, 3]}, "items[1] is 3 (int), it must be a map"),
        ({"items": [{}]}, "items[0].name is missing, it must be a text"),
        ({"items": [{"name": "a", "size": 1}]}, "items[0].size is not known; known are name"),
        ({"text": 3, "texts": "x" * 90}, f"texts is '{'x' * 76}... (str), it must be a list of texts"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], said: str) -> None:
    _, problems = read(Outer, given, lines={"batchSize": 7, "inner": 9})
    assert said in problems.values()
    assert len(problems) == len(given)


def test_places_begin_with_what_the_map_is_in() -> None:
    _, problems = read(Inner, {"the-ports": 0}, place="torchrun.", lines={"torchrun": 2})
    assert problems == {
        "torchrun.the-ports": "line 2: torchrun.the-ports is 0 (int), it must be an integer from 1 to 9"
    }
