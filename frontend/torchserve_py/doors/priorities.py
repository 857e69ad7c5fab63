"""How urgent a request is, as its client says: by the parameter `priority` of the Open Inference Protocol, or a header.

1 is the most urgent, then comes 2, and so on; 0 is the same as none at all, and comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.errors import DoorError, bad_request
from torchserve_py.scheduling.ranking import UNSET

if TYPE_CHECKING:
    from torchserve_py.transport.http1.request import Request

PARAMETER: Final = "priority"
HEADER: Final = "ts_request_priority"

_MAX: Final = 2**64 - 1
_MAX_DIGITS: Final = 20


def of_parameter(value: Any) -> int:
    """The priority that the value of the parameter means.

    Raises:
        DoorError: It means none.
    """
    if value is None:
        return UNSET
    if type(value) is not int or not 0 <= value <= _MAX:
        raise _unusable(f"Parameter {PARAMETER}", value)
    return value


def of_request(request: Request) -> int:
    """The priority that the header of an HTTP request names.

    Raises:
        DoorError: It names none.
    """
    value = request.headers.get(HEADER)
    return UNSET if value is None else of_text(value, "Header")


def of_text(text: str, place: str) -> int:
    """The priority in a header, or in what stands for one; ``place`` says which.

    Raises:
        DoorError: There is none in it.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS and int(digits) <= _MAX):
        raise _unusable(f"{place} {HEADER}", text)
    return int(digits)


def _unusable(place: str, value: Any) -> DoorError:
    return bad_request(
        f"{place}: {value!a} is no priority; it must be a whole number from 0 to {_MAX}, of which 1 is the most urgent"
        " and 0 says nothing."
    )
