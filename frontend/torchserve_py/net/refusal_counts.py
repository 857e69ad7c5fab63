"""What is refused before it is a request: connections beyond a limit, failed handshakes, bytes that are not HTTP.

No route, no model and no access log has it, so it is counted here, by reason, with a line in the log at most each ten
seconds for a reason: whoever sends garbage must not fill the disk.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from time import monotonic
from typing import Final

logger = logging.getLogger(__name__)

#: How long a reason has no further line in the log (seconds).
_QUIET: Final = 10.0


class RefusalReason(StrEnum):
    """Why something was refused."""

    listener_full = "listener_full"
    descriptors_used = "descriptors_used"
    address_full = "address_full"
    accept_failed = "accept_failed"
    tls_failed = "tls_failed"
    tls_missing = "tls_missing"
    malformed = "malformed"
    too_slow = "too_slow"
    foreign_page = "foreign_page"


_MEANINGS: Final = {
    RefusalReason.listener_full: "The listener has as many connections as max_connections allows",
    RefusalReason.descriptors_used: "There are as many connections as the limit of file descriptors allows",
    RefusalReason.address_full: "An address has as many connections as max_connections_per_client allows",
    RefusalReason.accept_failed: "Connections cannot be accepted",
    RefusalReason.tls_failed: "A TLS handshake failed",
    RefusalReason.tls_missing: "A client does not use TLS",
    RefusalReason.malformed: "A client sends bytes that are not HTTP",
    RefusalReason.too_slow: "A client takes too long to send the head of a request",
    RefusalReason.foreign_page: "A request names another host, or comes from a page of another site",
}


class Refusals:
    """Counts and logs refusals; ``count`` is called for each."""

    def __init__(
        self, count: Callable[[RefusalReason], None] = lambda reason: None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        #: When a reason had its line, and how many refusals had none since then.
        self._logged: dict[RefusalReason, float] = {}
        self._unlogged: dict[RefusalReason, int] = {}

    def note(self, reason: RefusalReason, peer: object, detail: object = "") -> None:
        """Count a refusal of ``peer``, an address as sockets have it."""
        self._count(reason)
        now = self._clock()
        if now - self._logged.get(reason, -_QUIET) < _QUIET:
            self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
            return
        self._logged[reason] = now
        more = self._unlogged.pop(reason, 0)
        host = str(peer[0]) if isinstance(peer, tuple) and peer else "a Unix socket"
        text = f"{_MEANINGS[reason]}: refused {host}" + (f" ({detail})" if str(detail) else "")
        logger.warning("%s%s", text, f"; and {more} more since the last line" if more else "")
