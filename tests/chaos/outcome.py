"""What a run from the command line tells, and its exit status."""

import sys
from collections.abc import Iterable, Sequence
from typing import Protocol

#: How many contradictions of a run are printed in full.
PRINTED = 10


class Survived(Protocol):
    """The report of a run; as a text it says what was survived."""

    @property
    def contradictions(self) -> Sequence[str]:
        """What clients saw that was not what they had been told."""


def tell(reports: Iterable[Survived]) -> int:
    """Print each report as soon as there is one; return 0 if nothing was contradicted."""
    failed = False
    for report in reports:
        print(report, flush=True)
        for contradiction in report.contradictions[:PRINTED]:
            print(contradiction, file=sys.stderr)
        failed |= bool(report.contradictions)
    return int(failed)
