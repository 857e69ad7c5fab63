"""How many frames that ask for nothing a client may send.

Such frames cost a client nothing and the server a little each, so that a flood of them would keep it busy: pings,
settings, empty frames, windows that grow by little, calls that are refused or reset before they began, and calls that
the server must reset because a frame breaks the rules. Every client needs some of them; none needs many. (These are the
floods of CVE-2019-9512, -9514, -9515 and -9518, and what could be done about them, CVE-2023-44487, and of calls that
the server is made to reset, CVE-2025-8671.)
"""

from __future__ import annotations

import time
from typing import Final

from torchserve_py.transport.http2.frames import ConnectionFailed, ErrorCode

#: So many at once …
BURST: Final = 10_000
#: … and so many a second for ever are put up with.
PER_SECOND: Final = 1_000


class Patience:
    """What is left of it with one client."""

    __slots__ = ("_left", "_since")

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since = time.monotonic()

    def spend(self, count: int = 1) -> None:
        """Put up with one more frame, or with one that costs as much as ``count``.

        Raises:
            ConnectionFailed: It was one too many.
        """
        self._left -= count
        if self._left >= 0:
            return
        now = time.monotonic()  # looked at only now, so that no frame pays for it
        self._left += min((now - self._since) * PER_SECOND, BURST)
        self._since = now
        if self._left < 0:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
