"""The requests over HTTP that are over: soon after, they are counted, and noted in the access log, many at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from torchserve_py.base.logs import access_log
from torchserve_py.endpoints.routing import ANY_METHOD

if TYPE_CHECKING:
    from torchserve_py.base.metrics.server_metrics import ServerMetrics
    from torchserve_py.endpoints.http_request import HttpRequest

#: All methods that no route has are counted under one name, as clients may make them up.
_OTHER: Final = "other"
_PROTOCOLS: Final = {(1, 1): "HTTP/1.1", (1, 0): "HTTP/1.0"}
_NO_IDS: Final[Mapping[str, str | None]] = {}
#: Requests of which this is equal are counted together.
_kind_of: Final = attrgetter("method", "matched", "status", "is_whole")


class EndedRequests:
    """Those of one listener; ``is_logged``: whether the access log has a line for each."""

    def __init__(self, metrics: ServerMetrics, *, is_logged: bool) -> None:
        self._metrics = metrics
        self._is_logged = is_logged
        #: Whether lines name more than TorchServe's do.
        self._names_ids = False
        self._requests: list[HttpRequest] = []

    def note(self, request: HttpRequest, *, is_whole: bool) -> None:
        """Keep a request that is over now until `fold`; ``is_whole``: its answer was sent as a whole."""
        if not self._requests:
            self._begin()
        request.is_whole = is_whole
        request.at, request.seconds = time.time(), request.connection.loop.time() - request.arrived
        request.ids = request.named() if self._names_ids else _NO_IDS
        self._requests.append(request)

    def _begin(self) -> None:
        """Have what comes now folded soon."""
        self._metrics.soon(self.fold)
        if self._is_logged:
            access_log.log.awaits(self.fold)
            self._names_ids = not access_log.log.is_text_only

    def fold(self) -> None:
        """Count the requests so far, and note them in the access log."""
        requests, self._requests = self._requests, []
        for (method, route, status, is_whole), alike in groupby(requests, _kind_of):
            ended: list[HttpRequest] = [*alike]
            path = "" if route is None else route.path
            self._metrics.http_requests[method if method in ANY_METHOD else _OTHER, path, status] += len(ended)
            if is_whole:
                self._metrics.count_answers(status, [each.at for each in ended])
            if self._is_logged and (route is None or not route.is_quiet or 400 <= status < 500):
                access_log.log.note_all(_entries(ended, path))


def _entries(requests: Sequence[HttpRequest], path: str) -> Iterator[tuple[float, access_log.Entry]]:
    for each in requests:
        client, protocol = each.connection.peer, _PROTOCOLS[each.version]
        yield each.at, (client, each.method, each.target, protocol, each.status, each.seconds, each.ids, path)
