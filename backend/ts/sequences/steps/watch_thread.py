"""The thread that hears which stored sequences other servers ask this one to let go."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from ts.sequences.steps.stores.store import StoreError, Watch

logger = logging.getLogger(__name__)

#: How long (seconds) to wait before a store that failed is listened to again.
_PAUSE: Final = 1.0


class WatchThread:
    """Listens until it is closed.

    Args:
        tell: Called in the thread with the ids of the sequences that are asked for.
    """

    def __init__(self, watch: Watch, tell: Callable[[Sequence[str]], None]) -> None:
        self._watch = watch
        self._tell = tell
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._is_closed.set()
        self._watch.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                if wanted := self._watch.wait():
                    self._tell(wanted)
            except Exception as error:
                if self._is_closed.is_set():
                    return
                if isinstance(error, StoreError):
                    logger.debug("The sequence store cannot be listened to: %s", error)
                else:  # a defect; without this thread other servers would get no sequence of this one
                    logger.exception("The sequences that other servers ask for were not let go")
                self._is_closed.wait(_PAUSE)
