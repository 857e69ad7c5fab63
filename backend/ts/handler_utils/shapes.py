"""Shapes that clients send with their data. They are claims: nothing is multiplied, made or printed before a check."""

from collections.abc import Sequence
from typing import Final

#: The most dimensions that a shape may have, which is numpy's limit.
MAX_DIMENSIONS: Final = 64
#: What `count_of` returns for every product that is not less; no data has that many elements.
MANY: Final = 2**63
#: How many empty rows a shape may have: data of no bytes can claim any number of them, and each is a list to whoever
#: reads the data as lists.
MAX_EMPTY: Final = 65_536
#: Dimensions that a message shows.
_SHOWN: Final = 8


class ShapeError(ValueError):
    """No data that a client sends can have the shape; the text begins with "the shape"."""


def count_of(shape: Sequence[int]) -> int:
    """Return how many elements a shape has, `MANY` for every number from there on.

    Args:
        shape: Integers, none negative.

    Raises:
        ShapeError: There are too many dimensions, or too many rows that hold nothing.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise ShapeError(f"the shape has {len(shape)} dimensions; it may have {MAX_DIMENSIONS}")
    count = 1
    for size in shape:
        if not size:
            if count > MAX_EMPTY:
                raise ShapeError(f"the shape {shown(shape)} has more than {MAX_EMPTY} rows that hold nothing")
            return 0
        count = min(count * size, MANY)
    return count


def shown(shape: Sequence[object]) -> str:
    """Return a shape for a message, shortened if it has many dimensions; what is not an integer stands as its type."""
    sizes = ", ".join([str(size) if type(size) is int else type(size).__name__ for size in shape[:_SHOWN]])
    return f"[{sizes}]" if len(shape) <= _SHOWN else f"[{sizes}, … ({len(shape)} dimensions)]"
