"""A clock that does not stand still while the machine is suspended."""

import time

#: Linux has this clock; elsewhere a suspended machine cannot be told from one that was not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def boot_time() -> float:
    """Return the seconds since the machine was started, those during which it was suspended included.

    All processes of a machine read the same clock, nobody can set it, and it never goes back. Use it for the moments
    that two processes of one machine tell each other, and for whatever others judge by their own clocks meanwhile, as
    leases: `time.monotonic` stands still while the machine is suspended, and `time.time` jumps when it is set.

    For limits on the silence or idleness of a peer use `time.monotonic`, which does not count the time in which the
    peer, too, was suspended. The two clocks must not be compared: after a suspension they differ.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
