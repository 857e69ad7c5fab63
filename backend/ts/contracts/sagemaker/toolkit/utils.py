"""Functions about headers, under the toolkit's names."""

import re
from collections.abc import Mapping
from typing import Any, Final

_CONTENT_TYPE: Final = re.compile("^[Cc]ontent-?[Tt]ype")


def read_file(path: str, mode: str = "r") -> Any:
    """Return the content of a file. Raises OSError."""
    with open(path, mode) as file:
        return file.read()


def write_file(path: str, data: Any, mode: str = "w") -> None:
    """Write a file. Raises OSError."""
    with open(path, mode) as file:
        file.write(data)


def retrieve_content_type_header(request_property: Mapping[str, str]) -> str | None:
    """Return the content type among the headers of a request, None without one."""
    return next((value for name, value in request_property.items() if _CONTENT_TYPE.match(name)), None)


def parse_accept(accept: str) -> list[str]:
    """Return the types that a header ``Accept`` names."""
    return accept.replace(" ", "").split(",")


def remove_crlf(text: str) -> str:
    """Return a text with spaces in place of line ends, as a reason phrase needs it."""
    return text.replace("\r", " ").replace("\n", " ")
