"""What a server does for its journals besides writing them: counts as metrics, and files that have become too old."""

import asyncio
from typing import Final

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.tools.journal.journal_thread import Journal, open_journals

#: How often the counts are read, and old files are looked for (seconds).
_COUNT_INTERVAL: Final = 1.0
_TIDY_INTERVAL: Final = 600.0


async def care_for_journals(context: EndpointContext) -> None:
    """Count what journals write and drop, and tidy them, until it is cancelled."""
    records, dropped = map(context.metrics.add, journal_families())
    shown: set[tuple[str, str]] = set()
    tidied_at, loop = -_TIDY_INTERVAL, asyncio.get_running_loop()
    while True:
        journals = open_journals()
        for journal in journals:
            labels = _labels(journal.model, journal.version)
            records.child(labels).value, dropped.child(labels).value = journal.records, journal.dropped
        now_shown = {(each.model, each.version) for each in journals}
        for gone in shown - now_shown:
            records.remove(_labels(*gone))
            dropped.remove(_labels(*gone))
        shown = now_shown
        if journals and loop.time() - tidied_at >= _TIDY_INTERVAL:
            tidied_at = loop.time()
            await asyncio.to_thread(_tidy, journals)
        del journals  # a model that has gone takes its journal along
        await asyncio.sleep(_COUNT_INTERVAL)


def journal_families() -> tuple[Family[Counter], Family[Counter]]:
    """Return the counts of records that were written, and of those that were dropped."""
    return (
        Family("ts_journal_records_total", Counter, "Count", "Records written to journals"),
        Family("ts_journal_dropped_total", Counter, "Count", "Requests without a record that should have one"),
    )


def _tidy(journals: list[Journal]) -> None:
    for each in journals:
        each.tidy()


def _labels(model: str, version: str) -> dict[str, str]:
    return {"model_name": model, "model_version": version}
