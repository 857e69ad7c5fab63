"""What a replay has found: what differs, what could not be sent, and how long answers took, then and now."""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from torchserve_py.base.terminal import visible

#: How many answers that differ are kept with what differs; all are counted.
MOST_KEPT: Final = 1000
_MOST_SHOWN: Final = 20
_PERCENTILES: Final = (50, 99)


class Difference(NamedTuple):
    """An answer that differs, and what in it.

    ``follows`` tells whether an answer before it in its sequence has differed, too: then this may be what the model
    remembers of that.
    """

    request_id: str
    time: str
    sequence: str | None
    path: str
    what: Sequence[str]
    follows: bool


class ReplayReport:
    """Adds up what a replay finds."""

    def __init__(self) -> None:
        self.equal = 0
        self.differing = 0
        #: How many of these follow another one in their sequence.
        self.following = 0
        self.differences: list[Difference] = []
        #: Requests that were sent, but whose answers could not be compared, and those that were not sent; by reason.
        self.not_compared: Counter[str] = Counter()
        self.not_replayed: Counter[str] = Counter()
        #: Lines of the journal that are no records, and those that are missing in encrypted files.
        self.incomplete = self.damaged = self.missing = 0
        self._recorded, self._replayed, self._late = array("d"), array("d"), array("d")

    def took(self, recorded: float, replayed: float) -> None:
        """Add how many seconds an answer took."""
        self._recorded.append(recorded)
        self._replayed.append(replayed)

    def was_late(self, seconds: float) -> None:
        """Add by how many seconds a request was sent later than planned."""
        self._late.append(seconds)

    def same(self) -> None:
        """Count an answer that is the same."""
        self.equal += 1

    def differs(self, difference: Difference) -> None:
        """Count an answer that differs."""
        self.differing += 1
        self.following += difference.follows
        if len(self.differences) < MOST_KEPT:
            self.differences.append(difference)

    @property
    def replayed(self) -> int:
        """How many requests were sent."""
        return self.equal + self.differing + self.not_compared.total()

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values; times are in seconds."""
        return {
            "replayed": self.replayed,
            "equal": self.equal,
            "differing": self.differing,
            "following": self.following,
            "differences": [each._asdict() for each in self.differences],
            "not_compared": dict(self.not_compared),
            "not_replayed": dict(self.not_replayed),
            "incomplete_lines": self.incomplete,
            "damaged_lines": self.damaged,
            "missing_lines": self.missing,
            "seconds": {
                name: {f"p{share}": _percentile(times, share) for share in _PERCENTILES}
                for name, times in (("recorded", self._recorded), ("replayed", self._replayed), ("late", self._late))
                if times
            },
        }

    def as_text(self) -> str:
        """Return it for people."""
        found = self.as_json()
        follow = f", {self.following} of them after another one of their sequence" if self.following else ""
        lines = [f"replayed: {self.replayed}, equal: {self.equal}, different: {self.differing}{follow}"]
        first = [each for each in self.differences if not each.follows]
        shown = first[:_MOST_SHOWN]
        for each in shown:
            of_sequence = f" of sequence {visible(each.sequence)}" if each.sequence else ""
            lines.append(f"  {visible(each.time)} request {visible(each.request_id)}{of_sequence} {visible(each.path)}")
            lines += [f"    {visible(what)}" for what in each.what]
        if (more := self.differing - len(shown)) > 0:
            lines.append(f"  and {more} more; --json has up to {MOST_KEPT}")
        for title, counts in (("sent but not compared", self.not_compared), ("not replayed", self.not_replayed)):
            lines += [f"{title}: {count}: {visible(reason)}" for reason, count in counts.most_common()]
        if self.incomplete or self.damaged:
            lines.append(f"lines that are no records: {self.incomplete} incomplete, {self.damaged} damaged")
        if self.missing:
            lines.append(f"lines that are missing in encrypted files: {self.missing}")
        if seconds := found["seconds"]:
            lines.append("milliseconds      p50       p99")
            for name, shares in seconds.items():
                lines.append(f"  {name:<9}{shares['p50'] * 1e3:>10.1f}{shares['p99'] * 1e3:>10.1f}")
        return "\n".join(lines)


def _percentile(times: Sequence[float], share: int) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
