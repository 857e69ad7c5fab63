"""Keys of YAML maps that are no text are told like any other wrong key."""

from typing import Any

import pytest

from torchserve_py.settings.schemas.schema import ClosedSchema, read


class Colours(ClosedSchema):
    red: int = 0


@pytest.mark.parametrize("key", [None, 1, True])
def test_a_key_that_is_no_text_is_a_problem_and_the_others_count(key: Any) -> None:
    values, problems = read(Colours, {key: 1, "red": 2})
    assert values.red == 2
    assert len(problems) == 1
