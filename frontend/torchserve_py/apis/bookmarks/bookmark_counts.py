"""The metrics of what was done with stored sequences."""

from typing import Self

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.endpoints.routing import EndpointContext


class BookmarkCounts:
    """How many sequences were forked, went back and were imported, by model."""

    def __init__(self) -> None:
        self.forked = Family("ts_sequences_forked_total", Counter, "Count", "Sequences that were forked")
        self.rewound = Family("ts_sequences_rewound_total", Counter, "Count", "Sequences that went back")
        self.imported = Family("ts_sequences_imported_total", Counter, "Count", "Sequences that were imported")

    @property
    def families(self) -> tuple[Family[Counter], ...]:
        """All of them."""
        return self.forked, self.rewound, self.imported

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return those of a server, which shows them."""
        counts = cls()
        for family in counts.families:
            context.metrics.add(family)
        return counts
