"""The priority of a request: the parameter `priority` of the Open Inference Protocol, or a header.

1 is the most urgent, then 2, and so on. 0 means no priority, and comes last.
"""

from typing import Any, Final

from torchserve_py.doors.failures import DoorError, bad_request
from torchserve_py.transport.http1.request import Request

PARAMETER: Final = "priority"
HEADER: Final = "ts_request_priority"

_MAX: Final = 2**64 - 1
_MAX_DIGITS: Final = 20


def of_parameter(value: Any) -> int:
    """Return the priority for a value of the parameter. Raises DoorError: the value is not a priority."""
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _MAX:
        raise _unusable(f"Parameter {PARAMETER}", value)
    return value


def of_request(request: Request) -> int:
    """Return the priority that the header of an HTTP request names. Raises DoorError: the header is not a priority."""
    value = request.headers.get(HEADER)
    return 0 if value is None else of_text(value, "Header")


def of_text(text: str, place: str) -> int:
    """Return the priority in a text; ``place`` says in messages where the text came from.

    Raises DoorError: the text is not a priority.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS and int(digits) <= _MAX):
        raise _unusable(f"{place} {HEADER}", text)
    return int(digits)


def _unusable(place: str, value: Any) -> DoorError:
    return bad_request(
        f"{place}: {value!a} is not a priority; it must be a whole number from 0 to {_MAX}: 1 is the most urgent, 0 the"
        " same as no priority."
    )
