"""What is wrong with a request that does not fit a signature: in words, and as a list in pydantic's terms."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic_core import to_json

#: How many characters of a wrong value, or of a name in a request, a message shows.
SHOWN: Final = 60
#: How many problems of one request are told.
_MOST: Final = 20
#: How many characters of JSON a value may have to be told as it is.
_SHORT: Final = 200
_OF_JSON: Final = (int, float, list, dict)


class InvalidValue(Exception):
    """A request does not have the values that the function takes; the message says which one is wrong.

    Attributes:
        errors: The problems as pydantic lists them: ``type``, ``loc``, ``msg``, and ``input`` if it is short JSON.
    """

    def __init__(self, message: str, errors: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.errors = list(errors) or [{"type": "value_error", "loc": [], "msg": message}]


def invalid(found: Sequence[Any]) -> InvalidValue:
    """Return the exception for errors of pydantic's; of many it tells the first, and how many there are."""
    told = found[:_MOST]
    rest = "" if len(found) == len(told) else f"; and {len(found) - len(told)} more, {len(found)} problems in all"
    return InvalidValue(words(told) + rest, [_listed(error) for error in told])


def words(errors: Sequence[Any]) -> str:
    """Return errors of pydantic's as one sentence."""
    return "; ".join(map(_told, errors))


def is_text(value: str) -> bool:
    """Return whether a text can be shown: it has no characters of what is not text."""
    return "\ufffd" not in value and "".join(value.split()).isprintable()


def shown(value: Any) -> str:
    """Return the words about what was given instead: the beginning of a text, and nothing of what is not text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"given {len(value)} bytes that are not text"
    if isinstance(value, str) and not is_text(value):
        return f"given {len(value)} characters that are not text"
    return f"given {str(value)[:SHOWN]!r}"


def _told(error: Any) -> str:
    given = "" if error["type"] == "missing" else f", {shown(error['input'])}"
    return f"{'.'.join(map(str, _place(error)))}: {error['msg']}{given}"


def _listed(error: Any) -> dict[str, Any]:
    return {"type": error["type"], "loc": _place(error), "msg": error["msg"]} | _input(error)


def _place(error: Any) -> list[int | str]:
    """Return where the value is: names, which may be the client's and long, and indexes."""
    return [each if isinstance(each, int) else each[:SHOWN] for each in error["loc"]]


def _input(error: Any) -> dict[str, Any]:
    """Return the wrong value as a member: the beginning of a text, and nothing of what is long or no JSON."""
    given = error["input"]
    if error["type"] == "missing":  # it would be all that there is around the value
        return {}
    if given is None or isinstance(given, str):
        return {"input": given and given[:SHOWN]} if given is None or is_text(given) else {}
    try:
        if isinstance(given, _OF_JSON) and len(to_json(given, inf_nan_mode="strings")) <= _SHORT:
            return {"input": given}
    except ValueError:
        pass
    return {}
