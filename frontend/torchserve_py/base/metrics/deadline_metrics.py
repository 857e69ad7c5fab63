"""The metrics of a model version's requests that have deadlines; shown from the first of them on."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from torchserve_py.base.metrics.families import ServerFamilies
from torchserve_py.base.metrics.instruments import Counter, Gauge, Histogram

#: What becomes of a request that is not answered by its deadline.
DROPPED: Final = "dropped"
LATE: Final = "late"


class DeadlineCounts(NamedTuple):
    """Requests with deadlines: answered in time, with how many seconds left in all; answered late; dropped."""

    in_time: int
    slack_seconds: float
    late: int
    late_seconds: float
    dropped: int


class DeadlineMetrics:
    """How many requests were late, by how much, and how much time the others had left."""

    def __init__(self, families: ServerFamilies, labels: Mapping[str, str]) -> None:
        self._families = families
        *model, hostname = labels.items()
        self._labels_of_misses = {what: dict([*model, ("reason", what), hostname]) for what in (DROPPED, LATE)}
        self._misses = {
            what: families.child(Counter, "ts_deadline_misses_total", each)
            for what, each in self._labels_of_misses.items()
        }
        self._lateness = families.child(Histogram, "ts_deadline_lateness_seconds", labels)
        self._slack = families.child(Histogram, "ts_deadline_slack_seconds", labels)
        self.sessions = families.child(Gauge, "ts_guaranteed_sessions", labels)
        self.share = families.child(Gauge, "ts_guaranteed_share", labels)

    def dropped(self) -> None:
        """Count a request that was dropped, because it could not be in time."""
        self._misses[DROPPED].inc()

    def answered(self, late_by: float) -> None:
        """Count a request that was answered so many seconds after its deadline, or before it if less than 0."""
        if late_by > 0:
            self._misses[LATE].inc()
            self._lateness.observe(late_by)
        else:
            self._slack.observe(-late_by)

    def counts(self) -> DeadlineCounts:
        """Return what was counted so far."""
        dropped, late = (int(self._misses[what].value) for what in (DROPPED, LATE))
        return DeadlineCounts(sum(self._slack.counts), self._slack.sum, late, self._lateness.sum, dropped)

    def forget(self) -> None:
        """Take away the series that have a reason."""
        for labels in self._labels_of_misses.values():
            self._families.remove(labels)
