"""The kinds of value that only settings of the server have: what their text means."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

from torchserve_py.base.settings.addresses import Address, bare_host, parse_address
from torchserve_py.base.settings.log_config import is_log4j, read_log_config
from torchserve_py.base.settings.model_spec import parse_model_specs
from torchserve_py.base.settings.schemas.values import Expected, Parsed, integer


def address(*, http_port: int, https_port: int) -> Parsed:
    """Return the kind of a bind address; the ports are those of an address without one."""

    def read(text: str, _: Path) -> Address:
        return parse_address(text.strip(), http_port=http_port, https_port=https_port)

    return Parsed(
        "http://host[:port], https://host[:port] or unix:/path, with a port below 65535, IPv6 in brackets",
        read,
    )


#: How TorchServe's own example of a stateful model writes a port.
_LOCAL_URL = re.compile(r"https?://(?:127\.0\.0\.1|localhost):([0-9]+)/?", re.IGNORECASE)
_PORT = integer(0, 65535)


def _port(text: str) -> Any:
    """Read a port, or the URL of one of this machine; where other machines reach it is another setting."""
    local = _LOCAL_URL.fullmatch(text.strip())
    return _PORT.from_text(text if local is None else local[1])


#: The longest name of a file or a directory, and the longest path, that the usual file systems take (bytes).
_MOST_OF_NAME: Final = 255
_MOST_OF_PATH: Final = 4095


def _path(text: str, base: Path) -> Path:
    if not text.strip():
        raise ValueError
    return checked_path(Path(os.path.normpath(base / text.strip())))


def checked_path(path: Path) -> Path:
    """Return the path. Raises ValueError: no file system takes it."""
    if "\0" in str(path):
        raise ValueError("no path has a NUL character")
    if len(os.fsencode(path)) > _MOST_OF_PATH or any(len(os.fsencode(name)) > _MOST_OF_NAME for name in path.parts):
        raise ValueError(f"a path has at most {_MOST_OF_PATH} bytes, and each name in it {_MOST_OF_NAME}")
    return path


def is_file(path: Path) -> bool:
    """Return whether there is a file; no path that the system refuses names one."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """Return whether there is a directory; no path that the system refuses names one."""
    try:
        return path.is_dir()
    except OSError:
        return False


def existing_file(text: str, base: Path) -> Path:
    """Return the path of a file. Raises ValueError: there is none."""
    path = _path(text, base)
    if not is_file(path):
        raise ValueError("no such file")
    return path


def _existing_directory(text: str, base: Path) -> Path:
    path = _path(text, base)
    if not is_directory(path):
        raise ValueError("no such directory")
    return path


def _log_config(text: str, base: Path) -> Path:
    path = existing_file(text, base)
    if not is_log4j(path):
        read_log_config(path)  # for its errors
    return path


def _compile(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"{pattern} is no regular expression: {error}") from None


def _listed(words: str, read: Callable[[str], Any]) -> Parsed:
    """Return the kind of a list of values, each of which ``read`` reads."""
    return Parsed(words, lambda text, _: tuple(read(part.strip()) for part in text.split(",") if part.strip()))


def _route(text: str, _: Path) -> str:
    if not re.fullmatch(r"/[^\s{}?#]+", text.strip()):
        raise ValueError
    return text.strip()


def _host(text: str, _: Path) -> str:
    if not text.strip():
        raise ValueError
    return bare_host(text.strip())


HOST = Parsed("a name or an address", _host)
PORT = replace(_PORT, from_text=_port)
PATH = Parsed("a path", _path)
ROUTE = Parsed("the path of a URL, such as /predict, without braces and query", _route)
HEADER = Expected("a header's name", lambda value: re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value) is not None)
DIRECTORY = Parsed("an existing directory", _existing_directory)
LOG_CONFIG = Parsed("a file as docs/logging.md describes it", _log_config)
WORDS = _listed("names with commas between them", str)
REGEX = Parsed("a regular expression", lambda text, _: _compile(text))
REGEXES = _listed("regular expressions with commas between them", lambda text: _compile(text, re.IGNORECASE))
NETWORKS = _listed("networks such as 10.0.0.0/8 with commas between them", ip_network)
MODELS = Parsed(
    "all, or [name=]location with commas between them, a location being an archive, a directory or a URL",
    lambda text, _: tuple(parse_model_specs(text)),
)
