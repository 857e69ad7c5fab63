"""The metrics of connections: how many each listener has, how many it may have, and what was refused."""

from typing import Final

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter, Gauge
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.net.admission import Admission
from torchserve_py.net.refusal_counts import RefusalReason

_OPEN: Final = "Connections that a listener has"
_LIMIT: Final = "Connections that a listener may have"
_REFUSED: Final = "Connections and bytes that were refused before they were a request, by reason"


class ConnectionCounts:
    """The series of one server."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._open = metrics.add(Family("ts_connections", Gauge, "Count", _OPEN))
        self._limit = metrics.add(Family("ts_connections_limit", Gauge, "Count", _LIMIT))
        family = metrics.add(Family("ts_refusals_total", Counter, "Count", _REFUSED))
        self._refused = {each: family.child({"reason": each.value}) for each in RefusalReason}

    def show(self, listener: str, admission: Admission) -> None:
        """Show the connections of a listener."""
        self._open.child({"listener": listener}).read_from(lambda: admission.open)
        self._limit.child({"listener": listener}).read_from(lambda: admission.limit)

    def refused(self, reason: RefusalReason) -> None:
        """Count a refusal."""
        self._refused[reason].inc()
