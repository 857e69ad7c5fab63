"""The fields of a request: each is read once, and what nobody reads is ignored or refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

from ts.handler_utils.openai_fields import changes_nothing

_LARGEST: Final = 2**63 - 1
UNSUPPORTED: Final = "unsupported_parameter"


class BadRequest(ValueError):
    """A request that cannot be answered; ``param`` is the field that is wrong, if it is one."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Fields:
    """The fields of a JSON object. All methods raise BadRequest for a value that is wrong."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = dict(values)

    def take(self, *names: str) -> Any:
        """Return the value under the first of these names that has one; None without one."""
        values = [self._values.pop(name, None) for name in names]
        return next((value for value in values if value is not None), None)

    def number(self, name: str, default: float, accepts: Callable[[float], bool], right: str) -> float:
        """Return a number; ``right`` describes what is accepted."""
        value = self.take(name)
        if value is None:
            return default
        if not is_number(value) or not accepts(value):
            wrong(name, value, right)
        return float(value)

    def whole(self, name: str, default: int, least: int, most: int = _LARGEST) -> int:
        """Return a whole number."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            limit = f" to {most}" if most != _LARGEST else " or more"
            wrong(name, value, f"a whole number, {least}{limit}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.take(name)
        if not isinstance(value, bool | None):
            wrong(name, value, "true or false")
        return default if value is None else value

    def object(self, name: str) -> dict[str, Any]:
        """Return an object; an empty one if there is none."""
        value = self.take(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            wrong(name, value, "an object")
        found: dict[str, Any] = value
        return found

    def refuse_the_rest(self) -> None:
        """Refuse what was not read, unless it cannot change the answer."""
        for name, value in self._values.items():
            if not changes_nothing(name, value):
                raise BadRequest(f"{name} is not supported by this model; leave it out.", name, UNSUPPORTED)


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all of them
        return False


def wrong(name: str, value: Any, right: str, param: str | None = "") -> NoReturn:
    """Refuse a value. Raises BadRequest, whose ``param`` is the name unless another one is given."""
    try:
        shown = repr(value)
    except RecursionError:
        shown = "nested too deeply"
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    raise BadRequest(f"{name} is {shown}; {right} is right.", name if param == "" else param)
