"""What happened when, and whether a server may truly say that a sequence was idle for too long."""

import asyncio
import time

from tests.chaos.ledger import Ledger

LOOK_INTERVAL = 0.05
#: What a request may take from its client to the server's notice, beyond what this process itself is late (seconds).
TOLERANCE = 0.5
#: A server that was told to stop lets go of its sequences within so many seconds.
DRAINED = 10.0


#: How many lines of a sequence's transcript are printed.
LINES = 60


class Timeline:
    """Events of one run.

    Args:
        idle_limit: ``sequenceMaxIdleMSec`` of the model (seconds).
    """

    def __init__(self, idle_limit: float) -> None:
        self.idle_limit = idle_limit
        self._began = time.monotonic()
        self._events: list[tuple[float, str]] = []
        self._late: list[tuple[float, float]] = []  # when it was over, and by how much (seconds)
        self._stops: list[float] = []

    def note(self, event: str) -> None:
        """Something happens now."""
        self._events.append((time.monotonic(), f"** {event}"))

    def server_stopped(self) -> None:
        """A server was told to stop: idle time runs for the sequences that it lets go of."""
        self._stops.append(time.monotonic())

    def since(self, when: float) -> list[tuple[float, str]]:
        """Return the events after a moment (``time.monotonic``)."""
        return [each for each in self._events if each[0] >= when]

    def story(self, ledger: Ledger) -> str:
        """Return the end of what a client has seen, and what happened meanwhile."""
        seen = ledger.transcript[-LINES:]
        lines = sorted([*seen, *self.since(seen[0][0])])
        return "\n".join(f"  {self.clock(when)} {text}" for when, text in lines)

    def clock(self, when: float) -> str:
        """Return a moment as seconds since the run began."""
        return f"{when - self._began:8.3f}"

    async def watch(self) -> None:
        """Notice for ever when this process comes late."""
        while True:
            due = time.monotonic() + LOOK_INTERVAL
            await asyncio.sleep(LOOK_INTERVAL)
            late = time.monotonic() - due
            if late > LOOK_INTERVAL:
                self.was_late(late)

    def was_late(self, seconds: float) -> None:
        """This process has stood still until now: it has read no answer for so long."""
        self._late.append((time.monotonic(), seconds))
        self.note(f"clients were late by {seconds:.2f} s")

    def why_expired(self, ledger: Ledger) -> str:
        """Say why a server may truly say that a sequence was idle for too long; "" if it may not.

        ``ledger.longest_gap`` is how long nothing of it was under way. Attempts that a server refused to admit count as
        gaps, since the server that holds the sequence does not know of them.
        """
        since = ledger.acknowledged_at
        if ledger.longest_gap + TOLERANCE >= self.idle_limit:
            return "idle for as long"
        if any(when > since - DRAINED for when in self._stops):
            return "let go of by a server that stopped"
        may_be_let_go = max(ledger.failed_at, ledger.copied_at or 0.0) > since
        unworked = max(ledger.longest_unworked, time.monotonic() - max(since, ledger.worked_at))
        if may_be_let_go and unworked + TOLERANCE >= self.idle_limit:
            # Nobody holds a sequence whose step has failed, and for a copy another server may. Then it is idle while a
            # request waits in vain, for a frozen server or for a worker; and whoever asks next makes that final.
            return "let go of, and no worker has had a step for as long"
        # An answer that was read right after they had come late may have been waiting for them all that time.
        late = sum(by for when, by in self._late if when > since - LOOK_INTERVAL)
        return "while the clients were late" if ledger.longest_gap + late + TOLERANCE >= self.idle_limit else ""
