"""Shapes that clients send: how many elements they have, and which no data can have."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts.handler_utils.shapes import MANY, MAX_DIMENSIONS, MAX_EMPTY, ShapeError, count_of, shown

SIZES = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 8), max_size=MAX_DIMENSIONS)


@given(SIZES)
def test_the_count_is_the_product_up_to_a_number_that_no_data_has(shape: list[int]) -> None:
    try:
        assert count_of(shape) == min(math.prod(shape), MANY)
    except ShapeError:
        assert math.prod(shape[: shape.index(0)]) > MAX_EMPTY


def test_more_dimensions_than_numpy_has_are_refused() -> None:
    assert count_of([1] * MAX_DIMENSIONS) == 1
    with pytest.raises(ShapeError, match="the shape has 65 dimensions; it may have 64"):
        count_of([1] * (MAX_DIMENSIONS + 1))


def test_rows_that_hold_nothing_are_counted() -> None:
    assert count_of([MAX_EMPTY, 0, 2**60]) == 0
    assert count_of([0, 2**60]) == 0
    with pytest.raises(ShapeError, match=r"the shape \[65537, 0\] has more than 65536 rows that hold nothing"):
        count_of([MAX_EMPTY + 1, 0])


def test_a_message_shows_the_beginning_of_a_shape() -> None:
    assert shown([]) == "[]"
    assert shown([1, -1, 224]) == "[1, -1, 224]"
    assert shown([7] * 64) == "[7, 7, 7, 7, 7, 7, 7, 7, … (64 dimensions)]"
    assert shown([2, "x" * 1000, None]) == "[2, str, NoneType]"
