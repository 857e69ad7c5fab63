"""Limits how many frames that ask for nothing a client may send.

Such frames cost the client nothing and the server a little, so a flood of them would keep the server busy: pings,
settings, empty frames, windows that grow by little, calls that are refused or reset before they began, and calls that
the server must reset because a frame breaks the rules. Every client needs some of them; none needs many. (These are the
floods of CVE-2019-9512, -9514, -9515 and -9518, and what could be done about them, CVE-2023-44487, and of calls that
the server is made to reset, CVE-2025-8671.)
"""

import time
from typing import Final

from torchserve_py.net.http2.frames import ConnectionFailed, ErrorCode

#: A client may send so many at once …
BURST: Final = 10_000
#: … and so many per second for any time.
PER_SECOND: Final = 1_000


class AbuseAllowance:
    """The allowance of one client."""

    __slots__ = ("_left", "_since")

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since = time.monotonic()

    def spend(self, count: int = 1) -> None:
        """Count one frame, or the price of several. Raises ConnectionFailed: the client has exceeded its allowance."""
        self._left -= count
        if self._left >= 0:
            return
        now = time.monotonic()  # read only here, so that most frames do not pay for it
        self._left += min((now - self._since) * PER_SECOND, BURST)
        self._since = now
        if self._left < 0:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
