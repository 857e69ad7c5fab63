"""What a load shows of a server: one row of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.sessions.load import Outcome, SessionResult


@dataclass(frozen=True)
class Report:
    """The result of a load.

    Attributes:
        server: Its name.
        offered: Sessions; of these ``refused`` before their first answer, ``lost`` by the server's own word, and
            ``abandoned`` because a step had no answer. The others were ``completed``.
        in_time: Share of the steps of all sessions that were not refused whose answer came within the period.
        first: Milliseconds until the first answer of a session, median and 99th percentile.
        later: The same for all other steps.
        gap: The longest time from a step's due moment to its answer, in milliseconds.
        lost_steps: Steps that were answered and then missing from the state.
        doubled_steps: Steps that were counted twice.
        reordered: Answers whose state has the right number of steps, but not these in this order.
        killed: Processes that were killed.
        cost: Milliseconds of processor time of the server per completed session.
    """

    server: str
    offered: int
    completed: int
    refused: int
    lost: int
    abandoned: int
    in_time: float
    first: tuple[float, float]
    later: tuple[float, float]
    gap: float
    lost_steps: int
    doubled_steps: int
    reordered: int
    killed: int
    cost: float


def report_of(server: str, results: Sequence[SessionResult], period: float, seconds: float, killed: int) -> Report:
    """Return the report of sessions with a period, which cost the server so many seconds of processor time."""
    outcomes = Counter(each.outcome for each in results)
    accepted = [each for each in results if each.outcome is not Outcome.REFUSED]
    due = sum(each.due for each in accepted)
    latencies = [latency for each in accepted for latency in each.latencies]
    return Report(
        server,
        offered=len(results),
        completed=outcomes[Outcome.COMPLETED],
        refused=outcomes[Outcome.REFUSED],
        lost=outcomes[Outcome.LOST],
        abandoned=outcomes[Outcome.ABANDONED],
        in_time=sum(latency <= period for latency in latencies) / due if due else 0.0,
        first=_percentiles([each.latencies[0] for each in accepted if each.latencies]),
        later=_percentiles([latency for each in accepted for latency in each.latencies[1:]]),
        gap=1000 * max(latencies, default=0.0),
        lost_steps=sum(each.checker.lost for each in results),
        doubled_steps=sum(each.checker.doubled for each in results),
        reordered=sum(each.checker.reordered for each in results),
        killed=killed,
        cost=1000 * seconds / max(outcomes[Outcome.COMPLETED], 1),
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    ordered = sorted(values) or [0.0]
    return tuple(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))  # type: ignore[return-value]


COLUMNS = (
    ("server", lambda each: each.server),
    ("sessions", lambda each: str(each.offered)),
    ("completed", lambda each: str(each.completed)),
    ("refused", lambda each: str(each.refused)),
    ("lost", lambda each: str(each.lost)),
    ("given up", lambda each: str(each.abandoned)),
    ("steps in time", lambda each: f"{100 * each.in_time:.2f} %"),
    ("first answer p50 / p99", lambda each: f"{each.first[0]:.0f} / {each.first[1]:.0f} ms"),
    ("step p50 / p99", lambda each: f"{each.later[0]:.1f} / {each.later[1]:.0f} ms"),
    ("longest gap", lambda each: f"{each.gap:.0f} ms"),
    ("steps lost", lambda each: str(each.lost_steps)),
    ("doubled", lambda each: str(each.doubled_steps)),
    ("out of order", lambda each: str(each.reordered)),
    ("kills", lambda each: str(each.killed)),
    ("CPU per session", lambda each: f"{each.cost:.0f} ms"),
)


def table(reports: Sequence[Report]) -> str:
    """Return the reports as a table in Markdown."""
    rows = [[name for name, _ in COLUMNS], ["---"] * len(COLUMNS)]
    rows += [[text(each) for _, text in COLUMNS] for each in reports]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
