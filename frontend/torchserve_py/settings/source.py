"""Where the value of a setting may come from, how its text is read, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from torchserve_py.settings.value_kinds import Kind

T = TypeVar("T")

_BY_RULE = "TS_<KEY>"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value of a setting may come from, and how it is read.

    Attributes:
        kind: How its text is read.
        meaning: One sentence for people.
        env: The environment variable that overrides it, or None.
        env_always: Whether that variable counts without ``enable_envvars_config=true``.
        in_file: Whether it is a key of config.properties.
        flag: The command line flag that sets it, or None.
        secret: Whether its value must never be shown.
        default_text: The default in words, where the value itself does not say it.
    """

    kind: Kind[Any]
    meaning: str
    env: str | None
    env_always: bool = False
    in_file: bool = True
    flag: str | None = None
    secret: bool = False
    default_text: str | None = None


def from_source(kind: Kind[Any], meaning: str, env: str | None = _BY_RULE, **more: Any) -> dict[str, Source]:
    """Return the metadata of a field whose value comes from a `Source`."""
    return {"source": Source(kind, meaning, env, **more)}


def setting(kind: Kind[T], default: T, meaning: str, *, env: str | None = _BY_RULE, **more: Any) -> T:
    """Return the field of a setting with a default; ``more`` are further attributes of its `Source`."""
    metadata = from_source(kind, meaning, env, **more)
    value: T = field(default=default, metadata=metadata, repr=not metadata["source"].secret)
    return value


def env_of(name: str, source: Source) -> str | None:
    """Return the environment variable that overrides the setting ``name``, or None."""
    return f"TS_{name.upper()}" if source.env == _BY_RULE else source.env
