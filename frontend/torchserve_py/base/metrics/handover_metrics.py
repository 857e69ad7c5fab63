"""The metrics of a model version's sequences that move between workers; shown from the first of them on."""

from collections.abc import Mapping

from torchserve_py.base.metrics.families import ServerFamilies
from torchserve_py.base.metrics.instruments import Counter
from ts.protocol.messages import MOVE_REFUSALS


class HandoverMetrics:
    """How many sequences have moved, how many could not, by the reason, and how many another server had, too."""

    def __init__(self, families: ServerFamilies, labels: Mapping[str, str]) -> None:
        self._families = families
        *model, hostname = labels.items()
        self._labels_of_refusals = {reason: dict([*model, ("reason", reason), hostname]) for reason in MOVE_REFUSALS}
        self.moved = families.child(Counter, "ts_sequences_moved_total", labels)
        self.given_up = families.child(Counter, "ts_sequences_given_up_total", labels)
        self.refused = {
            reason: families.child(Counter, "ts_sequence_moves_refused_total", each)
            for reason, each in self._labels_of_refusals.items()
        }

    def forget(self) -> None:
        """Take away the series that have a reason."""
        for labels in self._labels_of_refusals.values():
            self._families.remove(labels)
