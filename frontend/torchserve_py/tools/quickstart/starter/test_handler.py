"""A decorated function stays a function, so that a test can call it."""

from handler import count


def test_count() -> None:
    assert count("hello you") == {"words": 2, "characters": 9}
