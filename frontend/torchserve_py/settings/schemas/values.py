"""The kinds of value that users write: what each may be, and the words that say so.

A kind annotates a field of a `schema.Schema`, as in ``Annotated[int | None, Integer(1)]``. What
is wrong with a value is told as "it must be" and the words of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What a value must be, in words, beside its type and what ``is_right`` accepts."""

    words: str
    is_right: Callable[[Any], bool] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have the type validate the value, and say what is expected where it refuses."""
        return _saying(self.words, handler(source), self.is_right)


@dataclass(frozen=True, slots=True)
class Nested:
    """A map with a schema of its own, whose problems are told singly; ``words`` say what anything else must be."""

    words: str = "a map"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have the schema validate maps only."""

        def check(value: Any) -> Any:
            if value is not None and not isinstance(value, dict | BaseModel):
                raise _unexpected(self.words)
            return value

        return core_schema.no_info_before_validator_function(check, handler(source))


@dataclass(frozen=True, slots=True)
class Listed:
    """A list whose items' problems are told singly; null is an empty list."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Have the items validated of lists only."""

        def check(value: Any) -> Any:
            if value is None:
                return ()
            if not isinstance(value, list):
                raise _unexpected(self.words)
            return value

        return core_schema.no_info_before_validator_function(check, handler(source))


class Integer:
    """An integer from ``minimum`` to ``maximum``, both allowed; a number of ``unit``."""

    def __init__(self, minimum: int, maximum: int = MAX_INT, unit: str = "") -> None:
        self._bounds = minimum, maximum
        bounds = f"an integer from {minimum}" + (f" to {maximum}" if maximum < MAX_INT else "")
        self.words = f"{bounds} ({unit})" if unit else bounds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate without conversion: neither true nor "1" is an integer."""
        minimum, maximum = self._bounds
        inner = core_schema.int_schema(strict=True, ge=minimum, le=maximum)
        return _saying(self.words, core_schema.nullable_schema(inner))


class Choice:
    """One of a few words, written in any case; the value is in lower case."""

    def __init__(self, *choices: str) -> None:
        self._choices = choices
        self.words = "one of " + ", ".join(choice or '""' for choice in choices)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate the word in lower case."""
        inner = core_schema.nullable_schema(core_schema.literal_schema(list(self._choices)))
        lower = core_schema.no_info_before_validator_function(
            lambda value: value.lower() if isinstance(value, str) else value, inner
        )
        return _saying(self.words, lower)


def _saying(words: str, inner: CoreSchema, is_right: Callable[[Any], bool] | None = None) -> CoreSchema:
    def validate(value: Any, run: Callable[[Any], Any]) -> Any:
        try:
            if value is None or is_right is None or is_right(value):
                return run(value)
        except (ValidationError, ValueError):
            pass
        raise _unexpected(words)

    return core_schema.no_info_wrap_validator_function(validate, inner)


def _unexpected(words: str) -> PydanticCustomError:
    return PydanticCustomError("unexpected", "it must be {words}", {"words": words})


def is_number(value: object) -> bool:
    """Return whether a value is an integer or a float (true and false are not)."""
    return type(value) in (int, float)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


FLAG: Final = Expected("true or false", lambda value: isinstance(value, bool))
TEXT: Final = Expected("a text", lambda value: isinstance(value, str) and value != "")
ANY_TEXT: Final = Expected("a text", lambda value: isinstance(value, str))
TEXTS: Final = Expected("a list of texts", _is_list_of_texts)
MAP: Final = Expected("a map", lambda value: isinstance(value, dict))
SECONDS: Final = Expected("a number of seconds, more than 0", lambda value: is_number(value) and 0 < value <= MAX_INT)

Flag = Annotated[bool | None, FLAG]
Text = Annotated[str | None, TEXT]
AnyText = Annotated[str | None, ANY_TEXT]
Texts = Annotated[tuple[str, ...] | None, TEXTS]
Map = Annotated[dict[Any, Any] | None, MAP]
Seconds = Annotated[float | None, SECONDS]
