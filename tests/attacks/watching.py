"""Whether a server goes on serving others, and lets go of its memory, while somebody attacks it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from tests.e2e.running_server import RunningServer, eventually

#: For how long a probe may wait while the server works (seconds). Time in which other processes have its processor does
#: not count …
LONGEST_HOLD = 0.5
#: … but bounds how long a probe may take altogether.
LONGEST_PROBE = 10.0
#: How much more memory a server may hold after an attack (bytes).
KEPT = 50_000_000


class Watch:
    """Asks a server again and again whether it is alive, and checks at the end that it always was.

    Args:
        server: The server.
        longest_hold: For how long a probe may wait while the server works (seconds).
    """

    def __init__(self, server: RunningServer, longest_hold: float = LONGEST_HOLD) -> None:
        self._server = server
        self._longest_hold = longest_hold
        self._before = server.server.memory_info().rss
        self._probe = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("probe.py")), server.inference, str(server.server.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.probes = 0
        self.problems: list[str] = []

    def __enter__(self) -> Watch:
        self._reader.start()
        eventually(lambda: self.probes, "the first probe is answered")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                seen = self.probes
                eventually(lambda: self.probes > seen + 1, "a probe is answered after the attack")
        finally:
            assert self._probe.stdin is not None
            self._probe.stdin.close()
            code = self._probe.wait(60)
            self._reader.join(60)
        if error is None:
            assert (code, self.problems) == (0, []), (code, self.problems[:3])
            eventually(lambda: self._kept() < KEPT, "the server lets go of the memory", 120)

    def _kept(self) -> int:
        return int(self._server.server.memory_info().rss) - int(self._before)

    def _read(self) -> None:
        assert self._probe.stdout is not None
        for line in self._probe.stdout:
            status, seconds, held = json.loads(line)
            if status != 200 or held > self._longest_hold or seconds > LONGEST_PROBE:
                self.problems.append(f"{status} after {seconds:.2f} s, {held:.2f} of which the server worked")
            self.probes += 1
