"""The kinds of value a setting can have: how its text becomes a typed value, and what a right one looks like."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from torchserve_py.settings.addresses import Address, parse_address
from torchserve_py.settings.log_config import is_log4j, read_log_config
from torchserve_py.settings.model_spec import ModelSpec, parse_model_specs
from torchserve_py.settings.networks import Network
from torchserve_py.settings.snapshot_file import parse_snapshot

T_co = TypeVar("T_co", covariant=True)

#: What ``models`` holds: model name -> version -> settings of that version.
ModelsMap = dict[str, dict[str, dict[str, Any]]]
#: The keys of a version's settings; the last three stand there in snapshots.
MODELS_MAP_KEYS: Final = (
    *("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout", "runtimeType"),
    *("marName", "defaultVersion", "defaultVersionChosen"),
)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """One kind of value.

    Attributes:
        expected: What a right value is, to follow the word "expected" in an error message.
        read: Text and the directory that relative paths start from -> value. Raises `ValueError` for a wrong text; a
            message of its own is told to the user before what is expected.
    """

    expected: str
    read: Callable[[str, Path], T_co]


def _read_boolean(text: str, _: Path) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


boolean = Kind("true or false", _read_boolean)


def _read_text(text: str, _: Path) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


text = Kind("a text that is not empty", _read_text)


def _read_command(text: str, _: Path) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(str(error).lower()) from None
    if not words:
        raise ValueError
    return text.strip()


command = Kind("a command line", _read_command)
any_text: Kind[str] = Kind("a text", lambda text, _: text)


def integer(minimum: int, maximum: int | None = None) -> Kind[int]:
    """A whole number from ``minimum`` to ``maximum`` (both allowed)."""
    bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def read(text: str, _: Path) -> int:
        if re.fullmatch(r"[+-]?[0-9]+", text.strip()) is None:
            raise ValueError
        value = int(text)
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return value

    return Kind(f"a whole number {bounds}", read)


def _read_positive_number(text: str, _: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


positive_number = Kind("a number greater than 0", _read_positive_number)


def choice(*allowed: str) -> Kind[str]:
    """One of a few words, written in any case."""

    def read(text: str, _: Path) -> str:
        lowered = text.strip().lower()
        if lowered not in allowed:
            raise ValueError
        return lowered

    return Kind(f"one of {', '.join(allowed)}", read)


def address(*, http_port: int, https_port: int) -> Kind[Address]:
    """A bind address; the ports are those of an address that names none."""
    return Kind(
        "http://host[:port], https://host[:port] or unix:/path, with a port below 65535",
        lambda text, _: parse_address(text.strip(), http_port=http_port, https_port=https_port),
    )


def _read_path(text: str, base: Path) -> Path:
    if not text.strip():
        raise ValueError
    return Path(os.path.normpath(base / text.strip()))


def _read_existing_file(text: str, base: Path) -> Path:
    value = _read_path(text, base)
    if not value.is_file():
        raise ValueError("no such file")
    return value


def _read_existing_directory(text: str, base: Path) -> Path:
    value = _read_path(text, base)
    if not value.is_dir():
        raise ValueError("no such directory")
    return value


path = Kind("a path", _read_path)


def _read_metrics_config(text: str, base: Path) -> Path:
    from torchserve_py.metrics.metrics_file import read_metrics_config  # most servers have no such file

    path = _read_existing_file(text, base)
    read_metrics_config(path)  # for its errors
    return path


metrics_config = Kind("a file as docs/metrics.md describes it", _read_metrics_config)


def _read_log_config(text: str, base: Path) -> Path:
    path = _read_existing_file(text, base)
    if not is_log4j(path):
        read_log_config(path)  # for its errors
    return path


log_config = Kind("a file as docs/logging.md describes it", _read_log_config)
existing_directory = Kind("an existing directory", _read_existing_directory)


def _compile(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"{pattern} is no regular expression: {error}") from None


def _read_regexes(text: str, _: Path) -> tuple[re.Pattern[str], ...]:
    return tuple(_compile(part.strip(), re.IGNORECASE) for part in text.split(",") if part.strip())


regex = Kind("a regular expression", lambda text, _: _compile(text))
regexes = Kind("regular expressions with commas between them", _read_regexes)


def _read_networks(text: str, _: Path) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ValueError(str(error)) from None


networks = Kind("networks such as 10.0.0.0/8 with commas between them", _read_networks)


def _read_model_list(text: str, _: Path) -> tuple[ModelSpec, ...]:
    return tuple(parse_model_specs(text))


model_list = Kind(
    "all, or [name=]location with commas between them, a location being an archive, a directory or a URL",
    _read_model_list,
)


def _read_json_object(text: str, _: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"no valid JSON: {error.msg} at character {error.pos + 1}") from None
    if not isinstance(value, dict):
        raise ValueError
    return value


def _read_models_map(text: str, base: Path) -> ModelsMap:
    models = _read_json_object(text, base)
    for name, versions in models.items():
        if not isinstance(versions, dict):
            raise ValueError(f"the value of model {name} is no JSON object")
        for version, values in versions.items():
            if not isinstance(values, dict):
                raise ValueError(f"the value of model {name} version {version} is no JSON object")
    return models


snapshot = Kind("the JSON of a snapshot that a server has written", parse_snapshot)
models_map = Kind('a JSON object: {"model": {"version": {"batchSize": 4, ...}}}', _read_models_map)
