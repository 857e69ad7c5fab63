"""The values of a decorated function's parameters and results, by its annotations: from a request, and into a response.

A function with one parameter gets the body as its value. With several parameters the body is a JSON object with a value
for each, or a form with a field for each. ``str`` is text, ``bytes`` is the body as it came, images and sound are
files, everything else is JSON; results are written by the same rule. pydantic checks and converts the values.
"""

import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Final

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaSerializer, to_jsonable_python
from pydantic_core.core_schema import any_schema

from ts.contracts.served_functions import value_types
from ts.contracts.served_functions.invalid_values import SHOWN, InvalidValue, invalid, is_text, shown, words
from ts.contracts.served_functions.json_examples import NO_EXAMPLE, example_of
from ts.contracts.served_functions.tensor_declarations import tensor_of
from ts.jobs.errors import LoadError
from ts.jobs.json_values import array_value
from ts.protocol.media_types import BYTES, JSON, JSON_LINES, TEXT
from ts.serve_decorator import LOG, STATE

#: What the parser raises for a text that is not JSON, or is nested too deeply.
_NOT_JSON: Final = (ValueError, RecursionError)
_SCALARS: Final = (int, float, bool, str)
_RAW: Final = (bytes, bytearray)
#: Values of each type that the values of requests have.
_OF_REQUESTS: Final[tuple[Any, ...]] = ("", b"", bytearray(), 0, 0.0, True, None, [], {})
#: How like the name of a parameter with a default a member's must be to be taken for it (0 to 1), and how many members
#: are compared.
_VERY_LIKE: Final = 0.8
_MOST_COMPARED: Final = 20
#: The name of a field of a form; of what curl takes for a form, most bodies have other characters.
_FIELD: Final = re.compile(r"[\w.\-\[\]]{1,60}")
_OPEN: Final = ConfigDict(arbitrary_types_allowed=True)
#: Makes dicts of models and dataclasses, wherever they are in a value, and leaves the rest as it is.
_ANY: Final = SchemaSerializer(any_schema())


class CallValues:
    """What one function, or bound method, takes and gives.

    Args:
        batched: Whether each parameter, and the result, is a list with a value for each request.
        logs: Whether a parameter ``log`` is that of the request's sequence, not a value of the request.
        example: A request's value, or a dict with a value for each of several parameters; None if there is none.
        likely: Values of parameters for the example that is made where none is given, by name; they need not fit.

    Raises:
        LoadError: The function's parameters cannot be filled from a request, or not from the example.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batched: bool,
        logs: bool = False,
        example: Any = None,
        likely: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.name = name = getattr(function, "__name__", "predict")
        #: Whether it was told that a result does not fit the annotation.
        self.told_misfit = False
        try:
            signature = inspect.signature(function, eval_str=True)
        except NameError as error:
            raise LoadError(f"{name} has an annotation that means nothing: {error}") from error
        parameters = dict(signature.parameters)
        state = parameters.pop(STATE, None)
        self.takes_log = logs and parameters.pop(LOG, None) is not None
        if self.takes_log and state is None:
            raise LoadError(
                f"{name} has the parameter {LOG} without {STATE}, which rebuild makes of a log; add {STATE}"
            )
        for each in parameters.values():
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
                raise LoadError(f"{name} has the parameter {each}; each parameter needs a name that requests can use")
        types = {each.name: _type_of(each.annotation, batched, f"{name}: {each.name}") for each in parameters.values()}
        self.streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self.new_state: Callable[[], Any] | None = None
        if state is not None:
            kind = _type_of(state.annotation, batched, f"{name}: {STATE}")
            kind = typing.get_origin(kind) or kind
            self.new_state = kind if isinstance(kind, type) else dict
            _check_makeable(f"{name}: {STATE}", self.new_state)
        self._types = types
        self._single = next(iter(types)) if len(types) == 1 else None
        defaults = {key: _default_of(each, types[key], batched=batched) for key, each in parameters.items()}
        needed = [key for key, each in defaults.items() if each is ...]
        for key in needed:
            _check_reach(f"{name}: {key}", types[key])
        self._needed = needed
        #: The one parameter that a request must have, if it is a text or a file: a body that is not JSON is its value.
        self._main = needed[0] if len(needed) == 1 and _media_type_of(types[needed[0]]) != JSON else None
        self._optional = all(each is not ... for each in defaults.values())
        fields: dict[str, Any] = {key: (value_types.checked(types[key]), defaults[key]) for key in types}
        try:
            self._model = create_model(name, __config__=_OPEN, **fields)
        except PydanticUserError as error:
            reason = str(error).splitlines()[0]
            raise LoadError(f"{name} has a type that values cannot be checked against: {reason}") from None
        result = signature.return_annotation
        if self.streams:  # an iterator, or a generator, of its first argument
            result = next(iter(typing.get_args(result)), Any)
        self._result = _type_of(result, batched, f"{name}: the result")
        self._takes = JSON if self._single is None else _media_type_of(types[self._single])
        self._example = self._checked_example(name, example, likely)

    # Requests

    def read(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in a row. Raises InvalidValue: the row lacks one, or one is of another type."""
        given = self._given(row)
        try:
            checked = self._model.model_validate(given)
        except ValidationError as error:
            checked = self._under_its_name(given, error)
        return {name: getattr(checked, name) for name in self._model.model_fields}

    def _under_its_name(self, given: Mapping[str, Any], error: ValidationError) -> Any:
        """Check the value of the only parameter again, as the member of that name in an object; several are sent so.

        Raises InvalidValue: it is no such object, or its value does not fit either.
        """
        value = None if self._single is None else given.get(self._single)
        if isinstance(value, str) and value.lstrip()[:1] == "{":  # a text is taken as it came
            value = _value(value, dict)
        if isinstance(value, dict) and value.keys() == {self._single}:
            try:
                return self._model.model_validate(value)
            except ValidationError as inner:
                error = inner
        raise invalid(error.errors(include_url=False)) from None

    def _given(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._types.keys().isdisjoint(row):  # an ordinary body
            self._check_form(row)
            body = row.get("body")
            if self._optional and (body is None or (isinstance(body, bytes | bytearray | str) and not body)):
                return {}
            if self._single is not None:
                return {self._single: _json_value(body, self._types[self._single], self._single)}
            if self._main is not None and _is_other_body(body):
                return {self._main: _value(body, self._types[self._main])}
            row = _value(body, dict)
            if not isinstance(row, dict):
                raise InvalidValue(
                    f"the body is to be a JSON object with the members {self._names}, {_given_instead(row)}"
                )
            self._check_members(row, "member")
        else:
            self._check_members(row, "field")
        return {name: _value(value, self._types[name]) for name, value in row.items() if name in self._types}

    @property
    def types(self) -> Mapping[str, Any]:
        """The parameters that requests fill, by name, with the type of one request's value."""
        return self._types

    @property
    def _names(self) -> str:
        return ", ".join(self._types)

    def _check_form(self, row: Mapping[str, Any]) -> None:
        """Refuse a form without any of the parameters, which is what a body without a content type is to curl."""
        if not row or "body" in row:
            return
        names = [str(name) for name in row]
        if all(map(_FIELD.fullmatch, names)) and not any(each in ("", b"") for each in row.values()):  # meant as one
            raise InvalidValue(_unknown(names[0], self._types, "field"))
        has = "is no form"
        if all(map(is_text, names)):
            has = f"has {', '.join(repr(name[:SHOWN]) for name in names)} in place of {self._names}"
        raise InvalidValue(f"the request {has}; a body that is no form needs the header content-type: {self._takes}")

    def _check_members(self, given: Mapping[Any, Any], what: str) -> None:
        """Refuse a form or an object in which a parameter is missing and most likely misspelt.

        Other members without a parameter are passed over, as clients have some for others.
        """
        missing = [name for name in self._types if name not in given]
        unknown = [name for name in given if name not in self._types] if missing else []
        for name in map(str, unknown[:_MOST_COMPARED]):
            meant = get_close_matches(name[:SHOWN], missing, 1)
            if not meant:
                continue
            if meant[0] in self._needed:
                needs = {"type": "missing", "loc": [meant[0]], "msg": "Field required"}
                raise InvalidValue(_unknown(name, meant, what), [needs])
            if get_close_matches(name[:SHOWN], meant, 1, _VERY_LIKE):
                raise InvalidValue(_unknown(name, meant, what))

    # Responses

    def written(self, value: Any) -> tuple[Any, str]:
        """Return a result as handlers do, and its media type; numbers that JSON does not have (NaN) become null.

        Raises ValueError: JSON cannot represent the result.
        """
        if isinstance(value, str):
            return value, TEXT
        if isinstance(value, bytes | bytearray):
            return value, BYTES
        if (file := value_types.written(value)) is not None:
            return file
        try:
            try:
                return _of_json(value), JSON
            except UnicodeEncodeError:  # pydantic writes half of a surrogate pair in a value, and not in a key
                return _of_json_with_any_key(_ANY.to_python(value)), JSON
        except (PydanticSerializationError, TypeError) as error:
            raise ValueError(f"the result cannot be written as JSON: {error}") from error

    def misfit(self, value: Any) -> str:
        """Return how a result, or a part of one, differs from its annotation; empty if it fits, or there is none.

        It takes as long as checking a request, so it is for trying things out.
        """
        checker = self._result_checker
        if checker is None:
            return ""
        try:
            plain, media_type = self.written(value)
            if media_type == JSON:
                checker.validate_json(json.dumps(plain), strict=True)
            else:
                checker.validate_python(value, strict=True)
        except ValidationError as error:
            return words(error.errors(include_url=False)).removeprefix(": ")
        except ValueError:  # it cannot be written at all, which fails the request
            pass
        return ""

    @property
    def result(self) -> Any:
        """The type of one request's result, or of one part of a stream."""
        return self._result

    @functools.cached_property
    def result_reader(self) -> TypeAdapter[Any] | None:
        """What reads the results of a model that is called; None if they may be anything."""
        if self._result is Any:
            return None
        try:
            return TypeAdapter(value_types.checked(self._result))
        except PydanticUserError:  # a type of the user's own, which pydantic does not know
            return None

    @functools.cached_property
    def _result_checker(self) -> TypeAdapter[Any] | None:
        """What checks results; None if they may be anything."""
        if self._result is Any or value_types.value_type_of(self._result) is not None:
            return None
        try:
            return TypeAdapter(self._result)
        except PydanticUserError:  # a type of the user's own, which pydantic does not know
            return None

    @staticmethod
    def holds_arrays(value: Any) -> bool:
        """Whether a result is an array or a tensor, or has one under each name."""
        values = list(value.values()) if isinstance(value, dict) else [value]
        return bool(values) and all(hasattr(each, "tolist") for each in values)

    def written_part(self, value: Any) -> tuple[str | bytes | bytearray, str]:
        """Return one part of a streamed result, as `written` does; JSON values stand on lines of their own."""
        plain, media_type = self.written(value)
        return (json.dumps(plain) + "\n", JSON_LINES) if media_type is JSON else (plain, media_type)

    @property
    def declared(self) -> dict[str, Any]:
        """What the function takes and gives: the media type and JSON Schema of a request and of a response.

        ``example`` is a request that the function accepts; absent if none is known. ``parameters`` are the names of the
        parameters.
        """
        kinds = {"streams": self.streams, "stateful": self.new_state is not None}
        gives = _media_type_of(self._result)
        if self.streams and gives == JSON:
            gives = JSON_LINES
        about = {"parameters": list(self._types)}
        example = {} if self._example is NO_EXAMPLE else {"example": self._example}
        response = _schema(value_types.checked(self._result))
        return {"takes": self._takes, "request": self._request, "gives": gives, "response": response} | (
            about | example | kinds
        )

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The parameters as tensors of the Open Inference Protocol; empty if one of them has no such form."""
        found = [tensor_of(name, kind) for name, kind in self._types.items()]
        return [] if None in found else [each for each in found if each is not None]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The result as a tensor of that protocol; empty if it has no such form."""
        found = None if self._result is Any else tensor_of("output", self._result, of_result=True)
        return [] if found is None else [found]

    def check_names(self, names: Iterable[str]) -> None:
        """Check the names of a request's tensors. Raises InvalidValue: there is no parameter of such a name."""
        if unknown := [name for name in names if name not in self._types]:
            known = self._names or "none"
            raise InvalidValue(f"there is no input {unknown[0][:SHOWN]!r}; the inputs are: {known}")

    @functools.cached_property
    def _request(self) -> dict[str, Any]:
        """The JSON Schema of a request."""
        request = _schema(self._model)
        if self._single is None:
            return request
        definitions = {"$defs": request["$defs"]} if "$defs" in request else {}
        only: dict[str, Any] = request.get("properties", {}).get(self._single, {})
        return only | definitions

    def _checked_example(self, name: str, given: Any, likely: Mapping[str, Any]) -> Any:
        """Return the given example, else one that the schema accepts. Raises LoadError: the given one is wrong."""
        if given is None:
            made = example_of(self._request)
            better = likely.get(self._single, made) if self._single is not None else _with_likely(made, likely)
            return next((each for each in (better, made) if not self._problems(each)), NO_EXAMPLE)
        if problems := self._problems(given):
            raise LoadError(f"the example of {name} is not a request that it takes: {problems}")
        return given

    def _problems(self, example: Any) -> str:
        """Return what is wrong with an example; empty if nothing is."""
        try:
            self._model.model_validate({self._single: example} if self._single is not None else example)
        except ValidationError as error:
            return words(error.errors(include_url=False))
        return ""


def _of_json(value: Any) -> Any:
    return to_jsonable_python(value, inf_nan_mode="null", fallback=array_value)


def _of_json_with_any_key(value: Any) -> Any:
    """Return what `_of_json` returns, with texts as keys as they are; ``value`` has no models and dataclasses."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else next(iter(_of_json({key: None}))): _of_json_with_any_key(each)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_of_json_with_any_key(each) for each in value]
    return _of_json(value)


def _check_reach(what: str, kind: Any) -> None:
    """Refuse a class of which no request can hold a value. Raises LoadError."""
    if value_types.value_type_of(kind) is not None or not isinstance(kind, type):
        return
    try:
        schema = TypeAdapter(kind, config=_OPEN).core_schema
    except PydanticUserError:  # it has a configuration of its own, or is told of below
        return
    if schema["type"] == "is-instance" and not any(isinstance(each, kind) for each in _OF_REQUESTS):
        raise LoadError(
            f"{what} is to be a {kind.__name__}, which no request can hold; annotate str, bytes, a number, a list, a"
            " dict, a dataclass, a pydantic model, PIL.Image.Image, np.ndarray or torch.Tensor, or give it a default"
        )


def _check_makeable(what: str, kind: Callable[[], Any]) -> None:
    """Refuse a class of which a sequence cannot get a new instance. Raises LoadError."""
    try:
        inspect.signature(kind).bind()
    except ValueError:  # of a class that is written in C
        return
    except TypeError as error:
        raise LoadError(
            f"{what} is a {getattr(kind, '__name__', kind)}, and a new sequence cannot begin with one: {error}; give"
            " each of its fields a default"
        ) from error


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    meant = get_close_matches(name, list(known), n=1)
    hint = f"did you mean {meant[0]}?" if meant else f"the {what}s are: {', '.join(known)}"
    return f"unknown {what} {name[:SHOWN]}; {hint}"


def _with_likely(example: Any, likely: Mapping[str, Any]) -> Any:
    return {name: likely.get(name, value) for name, value in example.items()} if isinstance(example, dict) else example


def _default_of(parameter: inspect.Parameter, kind: Any, *, batched: bool) -> Any:
    """Return the default of one request's value, ``...`` if there is none.

    Where each parameter is a list, so may its default be, with the value of each request that has none: type checkers
    take no other.
    """
    default = ... if parameter.default is parameter.empty else parameter.default
    if not batched or not isinstance(default, list) or len(default) != 1:
        return default
    is_of_lists = kind is list or typing.get_origin(kind) is list
    return default[0] if not is_of_lists or isinstance(default[0], list) else default


def _type_of(annotation: Any, batched: bool, what: str) -> Any:
    """Return the type of one request's value, given the annotation; that of a batched function is a list."""
    if annotation is inspect.Parameter.empty or annotation is Any:
        return Any
    if not batched:
        return annotation
    if typing.get_origin(annotation) is not list and annotation is not list:
        raise LoadError(f"{what} is to be a list, since batch_size was given; it is {annotation}")
    return next(iter(typing.get_args(annotation)), Any)


def _is_other_body(body: Any) -> bool:
    """Return whether a body is a file, or a text that is not meant to be a JSON object."""
    if isinstance(body, bytes | bytearray):
        return body.lstrip()[:1] != b"{"
    return isinstance(body, str) and body.lstrip()[:1] not in ("", "{")


def _media_type_of(kind: Any) -> str:
    """Return the media type of a body that is one value."""
    if kind is str:
        return TEXT
    if kind in _RAW:
        return BYTES
    found = value_types.value_type_of(kind)
    return JSON if found is None else found.media_type


def _value(given: Any, kind: Any) -> Any:
    """Return a value as pydantic can check it: a tensor as its numbers, what came without a content type as text."""
    own = value_types.value_type_of(kind)
    if hasattr(given, "tolist"):
        if own is not None:
            return given
        return given.item() if given.size == 1 and kind in _SCALARS else given.tolist()
    if own is not None and (own.is_file or value_types.is_array_file(given)):
        return given
    if isinstance(given, bytes | bytearray) and kind not in _RAW:
        try:
            given = given.decode()
        except UnicodeDecodeError:
            return given
    if isinstance(given, str) and kind is not str and given.lstrip()[:1] in ("{", "[") and not _is_text(kind):
        try:
            return json.loads(given)
        except _NOT_JSON:
            return given
    return given


def _is_text(kind: Any) -> bool:
    """Return whether all values of a type are texts, or None: what looks like JSON is a text like any other then."""
    if typing.get_origin(kind) is Annotated:
        return _is_text(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return all(each is type(None) or _is_text(each) for each in typing.get_args(kind))
    return kind is str


def _json_value(body: Any, kind: Any, name: str) -> Any:
    """Return the value in a whole body. Raises InvalidValue: it looks like JSON, which the type needs, and is not."""
    value = _value(body, kind)
    if isinstance(value, str) and kind is not Any and value.lstrip()[:1] in ("{", "[") and not _is_text(kind):
        try:
            json.loads(value)
        except _NOT_JSON as error:
            raise InvalidValue(f"{name}: the body is not JSON: {error}") from None
    return value


def _given_instead(body: Any) -> str:
    """Return what is wrong with a body that is not a JSON object."""
    if body is None or (isinstance(body, str | bytes | bytearray) and not body):
        return "and is empty"
    if isinstance(body, str | bytes | bytearray):
        try:
            json.loads(body)
        except UnicodeDecodeError:
            return shown(body)
        except _NOT_JSON as error:
            return f"and is not JSON: {error}"
    return shown(body)


class _AnySchema(GenerateJsonSchema):
    """Makes JSON Schemas in which types that JSON Schema has no words for may be anything."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def _schema(kind: Any) -> dict[str, Any]:
    try:
        return TypeAdapter(kind).json_schema(schema_generator=_AnySchema)
    except PydanticUserError:  # a type of the user's own, which pydantic does not know
        return {}
