"""How urgent a request is: its priority, how long its client waits, and by when an answer is of use.

Over gRPC the client waits until the deadline of the call; the other headers are parameters, or entries of the input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from torchserve_py.core.jobs.call import Call
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.failures import bad_request
from torchserve_py.endpoints.requests import PRIORITY_HEADER, priority_of
from torchserve_py.endpoints.sequences import is_marked
from torchserve_py.net.http1.request import Request

#: How long a client waits for its answer (milliseconds, as `clientTimeoutInMills` in TorchServe's configuration; 0: no
#: limit). The first header that a request has counts. Over gRPC it is the deadline of the call.
_TIMEOUT_HEADERS: Final = ("ts_request_timeout", "x-request-timeout-ms")
_TIMEOUT_DIGITS: Final = 12
#: By when an answer is of use, the period in which a session sends its steps (both in milliseconds), what becomes of a
#: step that cannot be in time, and whether a session without room for a guarantee goes on without one.
DEADLINE: Final = "ts_request_deadline_ms"
PERIOD: Final = "ts_request_period_ms"
LATE: Final = "ts_request_late"
DEGRADE: Final = "ts_request_degrade"
_DROPS: Final = {None: False, "run": False, "drop": True}
#: What a time must be less than (milliseconds): more than a day.
MOST_MILLISECONDS: Final = 100_000_000
_MILLISECONDS: Final = re.compile(r"[0-9]{1,8}(\.[0-9]{1,3})?")
#: The names of which a request must have one for `read_deadline` to find anything, and those of headers for
#: `read_urgency`.
DEADLINE_NAMES: Final = frozenset((DEADLINE, PERIOD, LATE, DEGRADE))
URGENCY_KEYS: Final = frozenset(name.encode() for name in (PRIORITY_HEADER, *_TIMEOUT_HEADERS, *DEADLINE_NAMES))


def read_urgency(call: HttpCall) -> None:
    """Note how urgent a call over HTTP is, whose request has one of `URGENCY_KEYS`; its time began with the head.

    Raises EndpointError: a header has no such value.
    """
    request = call.request
    call.priority = call.priority or priority_of(request)  # a parameter in the body counts first
    call.answer_in = seconds_left(request)
    if call.timing is None:  # else the body has named it
        read_deadline(call, request.headers.get, "Header", seconds_since(request))


def seconds_since(request: Request) -> float:
    """Return how many seconds ago the head of a request came."""
    return request.connection.loop.time() - request.arrived


def read_deadline(
    call: Call, named: Callable[[str], str | None], place: str, waited: float = 0.0, *, is_session: bool = False
) -> None:
    """Give a call its deadline, if it has one.

    Args:
        named: Returns the value of a name, None if there is none.
        place: Where the values come from, for messages.
        waited: How many seconds the step has taken so far.
        is_session: Whether the call stands for those of a session, whose steps may name deadlines of their own. If it
            only says what becomes of late ones, its deadline is infinite.

    Raises EndpointError: a value is not one of those that its name can have.
    """
    deadline = seconds_in(place, DEADLINE, named(DEADLINE))
    period = seconds_in(place, PERIOD, named(PERIOD))
    within = period if deadline is None else deadline
    late = named(LATE)
    if late not in _DROPS:
        raise bad_request(f"{place} {LATE}: {late!a} is not drop or run, which a step that cannot be in time can do.")
    degrades = is_marked(f"{place} {DEGRADE}", named(DEGRADE))
    if within is None and is_session and late is not None and not degrades:
        within = math.inf
    if within is None:
        if late is not None or degrades:
            raise bad_request(
                f"{place} {LATE if late is not None else DEGRADE} needs {DEADLINE} or {PERIOD} beside it."
            )
    else:
        call.keep_time(within, waited=waited, drops=_DROPS[late], period=period, degrades=degrades)


def deadline_in(parameters: Mapping[str, Any]) -> Callable[[str], str | None]:
    """Return what returns the value of a name among the parameters of Open Inference, for `read_deadline`."""

    def named(name: str) -> str | None:
        value = parameters.get(name)
        return None if value is None else str(value)

    return named


def seconds_in(place: str, name: str, text: str | None) -> float | None:
    """Return a time in milliseconds as seconds, None without a text. Raises EndpointError: the text is no such time."""
    if text is None:
        return None
    if not _MILLISECONDS.fullmatch(text.strip()) or not float(text):
        raise bad_request(
            f"{place} {name}: {text!a} is not a time; it must be milliseconds, more than 0 and less than"
            f" {MOST_MILLISECONDS}."
        )
    return float(text) / 1e3


def seconds_left(request: Request) -> float | None:
    """Return how long the client still waits, None if it has named no limit. Its time began with the request's head.

    Raises EndpointError: the header is not a time.
    """
    for name in _TIMEOUT_HEADERS:
        if (text := request.headers.get(name)) is not None:
            digits = text.strip()
            if not (digits.isascii() and digits.isdecimal() and len(digits) <= _TIMEOUT_DIGITS):
                raise bad_request(
                    f"Header {name}: {text!a} is not a time; it must be a whole number of milliseconds, 0 for no limit."
                )
            return max(0.0, int(digits) / 1e3 - seconds_since(request)) if int(digits) else None
    return None
