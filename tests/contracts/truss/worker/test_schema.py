"""The schema that a model's annotations give."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Iterator
from typing import Any, Optional, Union

import pytest
from pydantic import BaseModel

from ts.contracts.truss.model_methods import describe, schema_of


class In(BaseModel):
    prompt: str


class Out(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("returns", "output", "streams"),
    [
        (Out, True, False),
        (Generator[str, None, None], False, True),
        (AsyncGenerator[str, None], False, True),
        (Iterator[str], False, True),
        (AsyncIterator, False, True),
        (Awaitable[Out], True, False),
        (Union[Out, Generator[str, None, None]], True, True),  # noqa: UP007
        (Union[Awaitable[Out], AsyncGenerator[str, None]], True, True),  # noqa: UP007
        (Out | Iterator[str], True, True),
        (list[Out], False, None),
        (str, False, None),
        (None, False, None),
        (Optional[Out], False, None),  # noqa: UP045
        (Union[Out, Iterator[str], None], False, None),  # noqa: UP007
        (Any, False, None),
    ],
    ids=str,
)
def test_what_a_model_returns(returns: Any, output: bool, streams: bool | None) -> None:
    schema = schema_of(In, returns)
    assert schema is not None
    assert schema["input_schema"]["title"] == "In"
    assert (schema["output_schema"] is not None, schema["supports_streaming"]) == (output, streams)
    alone = schema_of(None, returns)
    assert (alone is None) == (streams is None)


def test_the_first_and_the_last_step_count() -> None:
    class Model:
        def preprocess(self, inputs: In) -> Any: ...

        def predict(self, inputs: Any) -> Any: ...

        def postprocess(self, result: Any) -> Iterator[str]: ...

    schema = describe(Model()).schema
    assert schema is not None
    assert (schema["input_schema"]["title"], schema["supports_streaming"]) == ("In", True)


def test_without_annotations_there_is_none() -> None:
    class Model:
        def predict(self, inputs: list[In]) -> Any: ...

    assert describe(Model()).schema is None
