"""How many examples a property is tried with."""

from hypothesis import settings


def examples(number: int) -> int:
    """Return this number, or as large a share of it as the run tries of all: with ``--without-servers`` a fifth."""
    return max(4, number * settings.default.max_examples // 100)
