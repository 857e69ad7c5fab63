"""The words for a path that means nothing: which path it is, what was likely meant, and which models there are."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final
from urllib.parse import unquote

from torchserve_py.contracts.served_functions.own_path import own_path

#: How many characters of a path are shown, and how many of a segment may be compared with names.
_SHOWN: Final = 80
#: How many models are told, and how many names are compared.
_MOST_TOLD: Final = 10
_MOST_COMPARED: Final = 200
_DOCS: Final = "The page /docs shows the models and their paths."


def about_unknown_path(path: str, names: Sequence[str]) -> str:
    """Return the words for a path without a meaning; ``names`` are those of the models that may be told."""
    text = f"Nothing has the path {path[:_SHOWN]!r}."
    segments = [unquote(each) for each in path[: 2 * _SHOWN].split("/") if each]
    if named := next((each for each in segments if each in names), None):
        return f"{text} The model {named} is at {own_path(named)}. {_DOCS}"
    for segment in segments:
        if close := get_close_matches(segment, names[:_MOST_COMPARED], 1):
            return f"{text} Did you mean {own_path(close[0])}? {_DOCS}"
    if not names:
        return f"{text} {_DOCS}"
    more = ", …" if len(names) > _MOST_TOLD else ""
    return f"{text} The models are at {', '.join(map(own_path, names[:_MOST_TOLD]))}{more}. {_DOCS}"
