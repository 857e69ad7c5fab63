"""The operator's logging configuration (`--log-config`): Python's `logging.config.dictConfig` as JSON or YAML."""

from pathlib import Path
from typing import Any, Final

from torchserve_py.base.settings.schemas.values import json_object
from ts.protocol.regular_files import read_regular_text

_MAX_BYTES: Final = 1 << 20


class LogConfigError(ValueError):
    """The configuration cannot be used; the message says why."""


def is_log4j(path: Path) -> bool:
    """Return whether a file is one of log4j2, which only a Java virtual machine can use."""
    return path.suffix.lower() in (".xml", ".properties")


def read_log_config(path: Path) -> dict[str, Any]:
    """Read a configuration; whether its handlers and formatters exist shows when it is applied.

    Raises LogConfigError: it cannot be read or is no such configuration.
    """
    from torchserve_py.base.settings.schemas.yaml_mapping import read_yaml_mapping  # most servers have no such file

    is_json = path.suffix.lower() == ".json"
    try:
        config = json_object(read_regular_text(path, _MAX_BYTES)) if is_json else dict(read_yaml_mapping(path).values)
    except OSError as error:
        raise LogConfigError(f"it cannot be read: {error}") from None
    except ValueError as error:
        raise LogConfigError(str(error)) from None
    if config.get("version") != 1:
        raise LogConfigError("it must be a mapping with version: 1, as Python's logging.config.dictConfig takes it")
    return config
