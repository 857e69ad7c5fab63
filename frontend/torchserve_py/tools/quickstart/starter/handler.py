"""A model: the function that answers requests."""

from ts import serve


@serve
def count(text: str) -> dict[str, int]:
    """Count the words and the characters of a text."""
    return {"words": len(text.split()), "characters": len(text)}
