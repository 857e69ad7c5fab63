"""Sizes as people write and read them."""

from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from torchserve_py.fleet.memory_budget.sizes import SIZE, shown

SIZES = TypeAdapter(Annotated[int, SIZE])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("800MB", 800_000_000),
        ("2GB", 2_000_000_000),
        ("2 gb", 2_000_000_000),
        ("1.5GiB", 3 * 2**29),
        ("1.5Gi", 3 * 2**29),
        ("500k", 500_000),
        ("1234", 1234),
        (1234, 1234),
    ],
)
def test_a_size_has_a_unit_or_is_in_bytes(text: object, size: int) -> None:
    assert SIZES.validate_python(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2 apples", "-1GB", "0", 0, -5, True, 1.5, "1e9", "9" * 15 + "TB", None])
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="a size such as 800MB"):
        SIZES.validate_python(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (74_400_000, "74.4 MB"), (2e9, "2 GB"), (2e12, "2000 GB")],
)
def test_a_size_is_shown_in_the_unit_that_fits(size: float, text: str) -> None:
    assert shown(size) == text
