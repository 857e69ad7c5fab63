"""Whether a server goes on serving others, and lets go of its memory, while somebody attacks it."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import requests
from tests.e2e.running_server import RunningServer, eventually

#: How long a probe may take on a busy machine (seconds). What is attacked here took longer for one request.
LONGEST_PROBE = 2.0
#: How much more memory a server may hold after an attack (bytes).
KEPT = 50_000_000


class Watch:
    """Asks a server again and again whether it is alive, and checks at the end that it always was.

    Args:
        server: The server.
    """

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)
        self._before = server.server.memory_info().rss
        self.probes = 0
        self.problems: list[str] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        eventually(lambda: self.probes, "the first probe is answered")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            seen = self.probes
            eventually(lambda: self.probes > seen + 1, "a probe is answered after the attack")
        self._over.set()
        self._thread.join(60)
        if error is None:
            assert self.problems == []
            eventually(lambda: self._kept() < KEPT, "the server lets go of the memory", 15)

    def _kept(self) -> int:
        return int(self._server.server.memory_info().rss) - int(self._before)

    def _probe(self) -> None:
        with requests.Session() as session:
            while not self._over.is_set():
                started = time.monotonic()
                try:
                    status = session.get(f"{self._server.inference}/live", timeout=60).status_code
                except requests.RequestException as error:
                    self.problems.append(str(error))
                    return
                taken = time.monotonic() - started
                if status != 200 or taken > LONGEST_PROBE:
                    self.problems.append(f"a probe was answered with {status} after {taken:.1f} s")
                self.probes += 1
                self._over.wait(0.005)
