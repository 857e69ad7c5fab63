"""How much a client may send that asks for nothing: pings, settings, empty frames, calls taken back at once or broken.

Each such frame is cheap, but it costs its sender even less, and an honest client has little use for many of them.
(Known floods: CVE-2019-9511 to 9518 and, of calls reset before anything could be done about them, CVE-2023-44487,
and of calls that the server is made to reset, CVE-2025-8671.)
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

    def spend(self) -> None:
        """Put up with one more.

        Raises:
            ConnectionFailed: It was one too many.
        """
        self._left -= 1
        if self._left >= 0:
            return
        now = time.monotonic()  # looked at only now, so that no frame pays for it
        self._left += min((now - self._since) * PER_SECOND, BURST)
        self._since = now
        if self._left < 0:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
