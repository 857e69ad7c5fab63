"""Which failures of steps end a session, and with which close code and reason of the WebSocket."""

from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.endpoints.failures import Failure

ENDED: Final = (1000, "The sequence has ended.")
UNSUPPORTED_DATA: Final = 1003
INVALID_DATA: Final = 1007
POLICY_VIOLATION: Final = 1008
BROKEN: Final = (1011, "The session failed; the server's log says why.")
SILENT: Final = (1011, "keepalive ping timeout")
GOING: Final = (1012, "The server is shutting down.")
_TRY_AGAIN: Final = 1013
FULL: Final = (_TRY_AGAIN, "The server has no room for this message now.")
REPLACED: Final = (4409, "Another connection has resumed the session.")
#: The sequence is over: it has expired, or its state is lost.
GONE: Final = 4410

#: Failures of steps that were applied before, and those after which a sequence that has not ended has no further step.
APPLIED: Final = (Cause.step_applied, Cause.step_differs)
LOST: Final = (Cause.sequence_lost, Cause.sequence_expired, Cause.sequence_unknown, Cause.version_gone)


def code_of_refusal(failure: Failure) -> tuple[int, str]:
    """Return the code and the reason with which a session is closed that the server refuses."""
    return (_TRY_AGAIN if failure.status >= 500 else 4000 + failure.status), failure.message


class SessionOver(Exception):
    """The server closes the session."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def check_server_stays(failure: Failure | None) -> None:
    """Raise SessionOver if a step has failed because the server or the model goes."""
    if failure is not None and failure.cause in (Cause.draining, Cause.interrupted, Cause.unregistered):
        raise SessionOver(GOING[0], failure.message)


def check_goes_on(failure: Failure) -> None:
    """Raise SessionOver if the session ends with this failure of a step."""
    if failure.cause == Cause.sequence_ended:
        raise SessionOver(*ENDED)
    if failure.cause in LOST:
        raise SessionOver(GONE, failure.cause)
    check_server_stays(failure)


def check_can_resume(failure: Failure) -> None:
    """Raise SessionOver: the session ends with this failure, or cannot be resumed at the moment."""
    check_goes_on(failure)
    raise SessionOver(_TRY_AGAIN, failure.cause)
