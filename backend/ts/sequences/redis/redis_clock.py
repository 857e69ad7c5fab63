"""Redis's clock, as a process knows it from the answers that it gets.

Leases and idle times are moments of Redis's clock, which is that of its machine and can be set. A process compares it
with `ts.protocol.boot_clock`, which cannot: the offset between the two is known within the time that an answer takes,
and changes only if Redis's clock is set, or another Redis becomes the primary.
"""

import math

from ts.protocol.boot_clock import boot_time


class RedisClock:
    """The offset between the two clocks, in seconds.

    If Redis's clock is suddenly ahead, that is believed only after ``patience`` seconds: by then every lease that was
    taken before has run out or was prolonged, so the jump has ended none.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._low, self._high = -math.inf, math.inf
        self._ahead_since: float | None = None

    def heard(self, shown: float, asked_at: float) -> None:
        """Note what Redis's clock showed (seconds since 1970) between the moment ``asked_at`` and now."""
        now = boot_time()
        low, high = shown - now, shown - asked_at
        if low <= self._high and high >= self._low:
            self._low, self._high = max(low, self._low), min(high, self._high)
            self._ahead_since = None
            return
        if low > self._high:
            if self._ahead_since is None:
                self._ahead_since = now
            if now < self._ahead_since + self._patience:
                return
        self._low, self._high, self._ahead_since = low, high, None

    @property
    def offset(self) -> float:
        """What Redis's clock shows more than `boot_time`, at least."""
        return self._low

    def begin_with(self, offset: float) -> None:
        """Take over what another process of this machine has known."""
        self._low = self._high = offset

    def shown_at(self, moment: float) -> float:
        """Return what Redis's clock showed at a moment (seconds since 1970), or less by the time of an answer."""
        return max(0.0, self._low + moment)
