"""When the next worker of a place starts after one has failed or died: pure rules, by the seconds that they are given.

What counts is work: a worker that has answered a batch, or has been ready for `STABLE_AFTER`, leaves the place as if
nothing had ever failed. So one bad request in ten costs the time of two starts, and no delay. Workers that do no work
are started after growing delays. Requests do not wait for the next one if none got ready for `WORTH_WAITING` seconds
since the first failure, or if the delay alone is longer than that. If none got ready for `max_retry` seconds, the place
counts as given up: from then on it is tried once in `GIVEN_UP_DELAY`, for as long as it is wanted.
"""

from typing import Final

#: Seconds before each start of a failing worker: Fibonacci numbers as in TorchServe, but the first two at once, since a
#: request that kills its worker is run by two.
RESTART_DELAYS = (0, 0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
#: Seconds before each further attempt to find a machine with room for a worker, which is no failure of the worker.
PLACE_DELAY = 1
#: Seconds between the starts of a worker that was given up.
GIVEN_UP_DELAY = 60
#: A worker that was ready this long (seconds) before it died was no failure, even if it had nothing to do.
STABLE_AFTER: Final = 10.0
#: Seconds of failing after which requests no longer wait for the worker. A worker that fails at once has then been
#: started eight times (see `RESTART_DELAYS`): the model itself is probably the cause, and an error helps its clients
#: more than further waiting. A worker that loads for longer has not failed, and requests wait for it.
WORTH_WAITING = 10.0


class Restarts:
    """The failures of one place. Time in which there was no room for its worker does not count."""

    def __init__(self, max_retry: float) -> None:
        self._max_retry = max_retry
        self._attempt = 0
        self._delay = 0.0
        self._since: float | None = None  # when a worker was ready last, later by the seconds without room
        self._looked_at = 0.0

    def was_ready(self, seconds: float, *, has_worked: bool) -> None:
        """A worker is gone that was ready for so long."""
        self._since = None
        if has_worked or seconds > STABLE_AFTER:
            self._attempt = 0

    def failed(self, now: float, waited: float = 0.0) -> float:
        """A worker has died, or a start has failed, which began to wait for room ``waited`` seconds before it had some.

        Return the seconds until the next start.
        """
        self._since = now if self._since is None else self._since + waited
        self._looked_at = now
        self._delay = RESTART_DELAYS[min(self._attempt, len(RESTART_DELAYS) - 1)]
        if self.is_given_up(now):
            self._delay = GIVEN_UP_DELAY
        self._attempt += 1
        return self._delay

    def found_no_room(self, now: float) -> float:
        """No machine has room for a worker; return the seconds until the next look."""
        if self._since is not None:
            self._since += now - self._looked_at
        self._looked_at = now
        return PLACE_DELAY

    def is_given_up(self, now: float) -> bool:
        """Whether no worker got ready for longer than ``max_retry``."""
        return self._since is not None and now - self._since > self._max_retry

    def is_worth_waiting(self, now: float) -> bool:
        """Whether requests should wait for the next worker."""
        return self._delay <= WORTH_WAITING and (self._since is None or now - self._since <= WORTH_WAITING)
