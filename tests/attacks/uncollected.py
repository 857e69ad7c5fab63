"""A server without the garbage collector, and what has waited for it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.running_server import ROOT, RunningServer, eventually

HOOKS = Path(__file__).with_name("hooks")


class UncollectedServer(RunningServer):
    """A server whose collector is off; see `hooks/sitecustomize.py`."""

    def __init__(self, models: Mapping[str, Path], properties: Mapping[str, Any]) -> None:
        super().__init__(models, properties)
        self._told = self.directory / "bodies"
        self.environment["PYTHONPATH"] = os.pathsep.join(map(str, (HOOKS, ROOT / "frontend", ROOT / "backend")))
        self.environment["BODIES"] = str(self._told)

    def bodies(self) -> dict[str, Any]:
        """Ask the server which bodies it still has, and what has waited for the collector; that is gone then."""
        self._told.unlink(missing_ok=True)
        self.server.send_signal(signal.SIGUSR1)
        eventually(self._told.exists, "the server tells which bodies it has")
        told: dict[str, Any] = json.loads(self._told.read_text())
        return told
