"""The kinds of value that users write: what each may be, and the words that say so.

A kind annotates a field of a `schema.Schema`, as in ``Annotated[int | None, integer(1)]``. A problem with a value ends
in "it must be" and the words of its kind. Where a file holds only text (config.properties), ``from_text`` of the kind
makes the value that is then checked; text that it cannot convert stays as it is, and the check refuses it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Final, get_args

import msgpack
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Words that describe a right value, which must fit the type, or ``inner``, and be accepted by ``is_right``."""

    words: str
    is_right: Callable[[Any], bool] | None = None
    from_text: Callable[[str], Any] = str.strip
    inner: CoreSchema | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the type; a refused value gets the words as message."""
        inner = self.inner
        if inner is None:
            inner = handler(source)
        elif type(None) in get_args(source):
            inner = core_schema.nullable_schema(inner)
        return core_schema.no_info_wrap_validator_function(self._validated, inner)

    def _validated(self, value: Any, run: Callable[[Any], Any]) -> Any:
        try:
            if value is None or self.is_right is None or self.is_right(value):
                return run(value)
        except (ValidationError, ValueError, TypeError):
            pass
        limit = None if self.inner is None else self.inner.get("le")
        is_untold = limit is not None and isinstance(value, int) and value > limit and str(limit) not in self.words
        raise unexpected(f"{self.words}, at most {limit}" if is_untold else self.words)


@dataclass(frozen=True)
class Nested:
    """A map with a schema of its own, whose problems are reported one by one; ``words`` describe such a map."""

    words: str = "a map"
    shape: ClassVar[type] = dict
    from_text: ClassVar[Callable[[str], Any]] = str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, self.shape | BaseModel):
            raise unexpected(self.words)
        return value


class Listed(Nested):
    """A list with a schema for its items, whose problems are reported one by one; null is an empty list."""

    shape = list

    def _checked(self, value: Any) -> Any:
        return () if value is None else super()._checked(value)


class JsonText(Nested):
    """A map with a schema of its own, written as a map or as the text of a JSON object."""

    def _checked(self, value: Any) -> Any:
        try:
            return super()._checked(json_object(value, names_once=True) if isinstance(value, str) else value)
        except ValueError as error:
            raise unexpected(self.words, str(error)) from None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A value with a syntax of its own; ``read`` gets its text and the directory that relative paths start from.

    The message of a `ValueError` from ``read`` precedes the words. A value that is not text is not read.
    """

    words: str
    read: Callable[[Any, Path], Any]
    from_text: ClassVar[Callable[[str], Any]] = str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, info: core_schema.ValidationInfo) -> Any:
            if not isinstance(value, str | list):
                return value
            try:
                return self.read(value, info.context or Path())
            except ValueError as error:
                raise unexpected(self.words, str(error)) from None

        text = core_schema.str_schema()
        return core_schema.with_info_plain_validator_function(validate, json_schema_input_schema=text)


def integer(minimum: int, maximum: int = MAX_INT, unit: str = "") -> Expected:
    """Return the kind of integers from ``minimum`` to ``maximum``, both allowed; neither true nor "1" is one."""
    words = "an integer" + (f" from {minimum}" if minimum > -MAX_INT else "")
    words += f" to {maximum}" if maximum < MAX_INT else ""
    words += f" ({unit})" if unit else ""
    return Expected(words, from_text=_integer, inner=core_schema.int_schema(strict=True, ge=minimum, le=maximum))


def choice(*choices: str) -> Expected:
    """Return the kind of one of a few words, written in any case; the value is in lower case."""
    words = "one of " + ", ".join(choice or '""' for choice in choices)
    lower = core_schema.no_info_before_validator_function(
        lambda value: value.lower() if isinstance(value, str) else value, core_schema.literal_schema(list(choices))
    )
    return Expected(words, inner=lower)


def unexpected(words: str, reason: str = "") -> PydanticCustomError:
    """Return the error of a value that must be what the words say."""
    values = {"reason": f"{reason}, " if reason else "", "words": words}
    return PydanticCustomError("unexpected", "{reason}it must be {words}", values)


def json_object(text: str | bytes, *, names_once: bool = False) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ValueError, with ``names_once`` also if an object has a name twice."""
    try:
        value = json.loads(text, object_pairs_hook=_object_of if names_once else None)
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:  # a number that is too long, or lists nested too deep
        raise ValueError(f"no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"no JSON object but a {type(value).__name__}")
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these names and values. Raises ValueError: a name is there twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        name, count = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {name!a} is there {count} times")
    return values


def is_inside(value: object) -> bool:
    """Return whether a value is the path of something inside of a folder."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    return not {"..", "/"} & set(PurePosixPath(value).parts)


def is_plain_map(value: object) -> bool:
    """Return whether a value is a map of texts to texts, numbers, truth values, nulls, and lists and maps of these."""
    try:
        return isinstance(value, dict) and all(isinstance(name, str) for name in value) and bool(msgpack.packb(value))
    except (TypeError, ValueError, OverflowError):
        return False


def is_number(value: object) -> bool:
    """Return whether a value is an integer or a float (true and false are not)."""
    return type(value) in (int, float)


def _flag(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _integer(text: str) -> int | str:
    return int(text) if _INTEGER.fullmatch(text.strip()) else text


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


FLAG: Final = Expected("true or false", lambda value: isinstance(value, bool), _flag)
POSITIVE: Final = Expected("a number above 0", lambda value: is_number(value) and 0 < value < inf, _number)
NOT_NEGATIVE: Final = Expected("a number from 0", lambda value: is_number(value) and 0 <= value < inf, _number)
TEXT: Final = Expected("a text", lambda value: isinstance(value, str) and value != "")
ANY_TEXT: Final = Expected("a text", lambda value: isinstance(value, str), str)
NAME: Final = Expected("a text that is not empty", lambda value: isinstance(value, str) and value.strip() != "")
TEXTS: Final = Expected("a list of texts", lambda value: isinstance(value, list) and all(type(x) is str for x in value))
SECONDS: Final = Expected("a number of seconds, more than 0", lambda value: is_number(value) and 0 < value <= MAX_INT)

Flag = Annotated[bool | None, FLAG]
Text = Annotated[str | None, TEXT]
AnyText = Annotated[str | None, ANY_TEXT]
Texts = Annotated[tuple[str, ...] | None, TEXTS]
Seconds = Annotated[float | None, SECONDS]
