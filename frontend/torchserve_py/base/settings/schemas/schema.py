"""Reads what users write against a schema, and reports all problems at once.

A problem names the place, the value, its type and what the value must be::

    line 3: batchSize is 'many' (str), it must be an integer from 1
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from torchserve_py.base.url_secrets import without_secrets

_SHOWN_LENGTH = 80
_NO_LINES: Mapping[str, int] = {}


def key(name: str | None, meaning: str, default: str = "", otherwise: Any = None, *, repr: bool = True) -> Any:
    """Return the field of an optional key, which is called ``name`` if not as the field.

    ``meaning`` and ``default`` tell in Markdown what it is for, and what holds where it is not given; ``otherwise`` is
    the field's value then.
    """
    extra: dict[str, Any] = {"x-default": default} if default else {}
    return Field(default=otherwise, alias=name, description=meaning, json_schema_extra=extra, repr=repr)


class Schema(BaseModel):
    """A map of which some keys are known; others are ignored. A known key with null counts as not given.

    ``others`` is the schema of the maps under keys that users choose, where there are such keys.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)
    others: ClassVar["type[Schema] | None"] = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {*cls.key_names(), *cls.model_fields}
        return {name: value for name, value in given.items() if value is not None or name not in known}

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys as users write them."""
        return [str(field.validation_alias or name) for name, field in cls.model_fields.items()]

    @classmethod
    def field_of(cls, key: str) -> FieldInfo | None:
        """Return the field of a key as users write it, or None for a key that is not known."""
        return next((field for name, field in cls.model_fields.items() if key in (field.validation_alias, name)), None)


def as_shown(values: Schema) -> dict[str, Any]:
    """Return the keys that are given, and not by their defaults, for pages: without secrets, and those in URLs."""
    fields = type(values).model_fields
    given = ((str(field.alias or name), field, getattr(values, name)) for name, field in fields.items())
    return {
        name: _as_shown(value) if field.repr else "********"
        for name, field, value in given
        if value != field.get_default(call_default_factory=True)
    }


def _as_shown(value: Any) -> Any:
    if isinstance(value, Schema):
        return as_shown(value)
    if isinstance(value, Mapping):
        return {str(name): _as_shown(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_as_shown(each) for each in value]
    return value if isinstance(value, (bool, int, float, type(None))) else without_secrets(str(value))


class ClosedSchema(Schema):
    """A map without unknown keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


S = TypeVar("S", bound=Schema)


def read(
    schema: type[S], given: Mapping[Any, Any], place: str = "", lines: Mapping[str, int] = _NO_LINES
) -> tuple[S, dict[str, str]]:
    """Return the values of a map that are right, and for each wrong value its problem, by the dotted name of the key.

    A known key whose value is null or wrong counts as not given; the outermost keys are all optional. ``place`` is the
    prefix of keys in messages, such as ``handler.cache.``; ``lines`` has the lines (from 1) of the outermost keys.
    """
    values, errors = validate(schema, given)
    problems: dict[str, str] = {}
    for each in errors:
        name = place + dotted(each["loc"])
        line = lines.get(name.partition(".")[0].partition("[")[0])
        problems.setdefault(name, f"{f'line {line}: ' if line else ''}{told(schema, each, name)}")
    return values, problems


def validate(schema: type[S], given: Mapping[Any, Any], base: Path | None = None) -> tuple[S, list[ErrorDetails]]:
    """Return the values that are right, and the errors of the others; relative paths in texts start from ``base``."""
    try:
        return schema.model_validate(given, by_alias=True, by_name=False, context=base), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    for each in found:
        if each["type"] == "invalid_key" and isinstance(each["input"], bool):  # pydantic's location has 1 for True
            each["loc"] = (*each["loc"][:-1], each["input"])
    wrong = {each["loc"][0] for each in found}
    right = {key: value for key, value in given.items() if isinstance(key, str) and key not in wrong}
    return schema.model_validate(right, by_alias=True, by_name=False, context=base), found


def told(schema: type[Schema], error: ErrorDetails, name: str = "") -> str:
    """Return an error as a problem of the key with that (dotted) name."""
    name = name or dotted(error["loc"])
    if error["type"] == "missing":
        field = _beside(schema, error["loc"]).field_of(str(error["loc"][-1]))
        words = None if field is None else expected(field)
        return f"{name} is missing" + (f", it must be {words}" if words else "")
    if error["type"] == "invalid_key":
        return f"{name} is a key that is not text; put it in quotes"
    if error["type"] == "extra_forbidden":
        return f"{name} is not known; known are {', '.join(_beside(schema, error['loc']).key_names())}"
    return f"{name} is {shown(error['input'])}, {error['msg']}"


def expected(field: FieldInfo) -> str | None:
    """Return what the value of a key must be, or None for a value that the server does not check."""
    return next((each.words for each in field.metadata if hasattr(each, "words")), None)


def _beside(schema: type[Schema], location: tuple[int | str, ...]) -> type[Schema]:
    """Return the schema of the map that holds a place."""
    for part in location[:-1]:
        if isinstance(part, str):
            field = schema.field_of(part)
            schema = next(_schemas_in(field.annotation)) if field is not None else schema.others or schema
    return schema


def _schemas_in(annotation: Any) -> Iterator[type[Schema]]:
    if isinstance(annotation, type) and issubclass(annotation, Schema):
        yield annotation
    for part in get_args(annotation):
        yield from _schemas_in(part)


def dotted(location: tuple[int | str, ...]) -> str:
    """Return a place in nested maps and lists as users write it: ``inputs[0].shape``."""
    text = ""
    for each in location:
        if each == "[key]":  # pydantic's mark of a wrong key, which is the part before
            continue
        text += f"[{each}]" if isinstance(each, int) else f".{each}" if text else each
    return text


def shown(value: object) -> str:
    """Return a value and its type for a message, cut where it is long."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + '...'} ({type(value).__name__})"
