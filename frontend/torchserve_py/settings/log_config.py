"""The operator's logging configuration (`--log-config`): Python's `logging.config.dictConfig` as JSON or YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class LogConfigError(ValueError):
    """The configuration cannot be used; the message says why."""


def is_log4j(path: Path) -> bool:
    """Whether a file is one of log4j2, which only a Java virtual machine can use."""
    return path.suffix.lower() in (".xml", ".properties")


def read_log_config(path: Path) -> dict[str, Any]:
    """Read a configuration; whether its handlers and formatters exist shows when it is applied.

    Raises:
        LogConfigError: It cannot be read or has no such form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LogConfigError(f"it cannot be read: {error}") from None
    config = _from_json(text) if path.suffix.lower() == ".json" else _from_yaml(text)
    if not isinstance(config, dict) or config.get("version") != 1:
        raise LogConfigError("it must be a mapping with version: 1, as Python's logging.config.dictConfig takes it")
    return config


def apply_log_config(path: Path) -> frozenset[str]:
    """Read a configuration and configure logging so; return the names of the loggers that it configures.

    Raises:
        LogConfigError: It cannot be read, has no such form, or names what does not exist.
        OSError: A log file cannot be written.
    """
    import logging.config  # 10 ms that most servers need not wait for

    # Loggers are made when modules are imported: what the file does not name must go on working.
    config = {"disable_existing_loggers": False, **read_log_config(path)}
    try:
        logging.config.dictConfig(config)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        cause = "" if error.__cause__ is None else f": {error.__cause__}"
        raise LogConfigError(f"--log-config {path}: {error}{cause}") from error
    return frozenset(config.get("loggers") or ())


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise LogConfigError(f"it is no JSON: {error}") from None


def _from_yaml(text: str) -> Any:
    import yaml  # most servers have no such file

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LogConfigError(f"it is no YAML: {' '.join(str(error).split())}") from None
