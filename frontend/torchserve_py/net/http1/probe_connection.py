"""A connection above the limit of its listener: it may ask for one probe, soon, and is closed."""

from typing import Final

from torchserve_py.net.admission import ConnectionPlace
from torchserve_py.net.http1.http_connection import HttpConnection, HttpOwner
from torchserve_py.net.http1.request import Request

#: How long its client may take to send the head of its request (seconds).
_LIMIT: Final = 1.0


class ProbeConnection(HttpConnection):
    """One connection, whose ``place`` has the reason that clients are told; ``server`` answers probes, and no other."""

    def __init__(self, server: HttpOwner, place: ConnectionPlace) -> None:
        super().__init__(server, place)
        self._reason = place.refused
        place.give_up = self._turn_away

    def _await_head(self) -> None:
        self._awaits_head = self._parser.is_within_head
        self._timer.start(_LIMIT, lambda: self._refuse(503, self._reason))

    def _turn_away(self) -> None:
        """Make room for another connection."""
        if self._current is None and not self.is_closing:
            self.write(self._server.application.refusal(503, self._reason, self.peer))
        self.close()


def reason_of(request: Request) -> str:
    """Return why the connection of a request may only ask for a probe."""
    place = request.connection.place
    return "" if place is None else place.refused
