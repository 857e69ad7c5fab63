"""The classes that a function's state is made of, as a store keeps them: dataclasses, pydantic models and enumerations.

A store keeps the attributes of an instance and gives them back as they were: no ``__init__`` and no validator runs.
Where the class has got a further field since, that has its default.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from ts.jobs.errors import LoadError
from ts.sequence.encoding import Decoder, Encoder, StateEncoding
from ts.sequence.state_error import StateError

_MISSING: Final = dataclasses.MISSING


def encoders_of(kind: Any) -> dict[type, tuple[Encoder, Decoder]]:
    """Return the encoders of a class, and of the classes that its annotations name, for `StateEncoding`."""
    found: dict[type, tuple[Encoder, Decoder]] = {}
    pending, seen = [kind], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        pending += [*typing.get_args(each), typing.get_origin(each)]
        if isinstance(each, type) and (pair := _encoder_of(each)) is not None:
            found[each] = pair
            pending += _annotations(each)
    return found


def check_storable(name: str, kind: type, new: Callable[[], Any], encoding: StateEncoding) -> None:
    """Raise LoadError if a new state of a function cannot be stored: each of its requests would fail."""
    try:
        state = new()
    except Exception:  # it may need what `setup` loads
        return
    try:
        encoding.encode(state)
    except StateError as error:
        raise LoadError(
            f"{name}: state is a {kind.__name__}, which a store cannot keep: {error}. Annotate a dict, a dataclass or a"
            ' pydantic model, or serve it with store="memory"'
        ) from error


def _encoder_of(kind: type) -> tuple[Encoder, Decoder] | None:
    if issubclass(kind, Enum):
        return _name, partial(getattr, kind)
    if issubclass(kind, BaseModel):
        return _state_of_model, partial(_model_of, kind)
    if dataclasses.is_dataclass(kind):
        return _attributes, partial(_instance_of, kind)
    return None


def _annotations(kind: type) -> Iterable[Any]:
    if issubclass(kind, Enum):
        return ()
    try:
        return typing.get_type_hints(kind).values()
    except Exception as error:  # names that mean nothing, or annotations that compute something
        text = f"{kind.__name__}, a class of the state, has an annotation that means nothing: {error}"
        raise LoadError(text) from error


def _name(member: Enum) -> str | None:
    return member.name


def _attributes(instance: Any) -> dict[str, Any]:
    """Return all attributes of an instance of a dataclass, by name."""
    slots = {name for cls in type(instance).__mro__ for name in _slots(cls) if hasattr(instance, name)}
    return {name: getattr(instance, name) for name in sorted(slots)} | getattr(instance, "__dict__", {})


def _slots(cls: type) -> Iterable[str]:
    names = cls.__dict__.get("__slots__", ())
    return set([names] if isinstance(names, str) else names) - {"__dict__", "__weakref__"}


def _instance_of(kind: Any, attributes: Mapping[str, Any]) -> Any:
    """Return an instance with these attributes. Raises StateError: a field has neither a value nor a default."""
    instance = kind.__new__(kind)
    for field in dataclasses.fields(kind):
        if field.name not in attributes:
            object.__setattr__(instance, field.name, _default(kind, field))
    for name, value in attributes.items():
        object.__setattr__(instance, name, value)  # a frozen one has no other way
    return instance


def _default(kind: type, field: Any) -> Any:
    if field.default is not _MISSING:
        return field.default
    if field.default_factory is not _MISSING:
        return field.default_factory()
    raise StateError(f"the stored {kind.__name__} has no field {field.name}, which has no default")


def _state_of_model(model: BaseModel) -> Any:
    return model.__getstate__()


def _model_of(kind: type[BaseModel], state: Any) -> BaseModel:
    """Return a pydantic model. Raises StateError: a field has neither a value nor a default."""
    fields = state["__dict__"]
    for name, field in kind.model_fields.items():
        if name not in fields:
            if field.is_required():
                raise StateError(f"the stored {kind.__name__} has no field {name}, which has no default")
            fields[name] = field.get_default(call_default_factory=True)
    model = kind.__new__(kind)
    model.__setstate__(state)
    return model
