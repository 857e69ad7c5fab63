"""What an incident is: its cause begins and ends, and meanwhile a watcher looks for its sign and counts what is lost.

An incident is a function that gets a `Scene` and a server. It begins its cause, calls `Scene.detect` with the sign by
which an operator would notice (a metric, an answer, a line of the log), removes the cause, and calls `Scene.heal` with
what must be true again without anybody's help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.running_server import RunningServer

#: An incident that nobody hears of for so long (seconds) has failed; and one that has not healed for so long.
DETECTION: Final = 60.0
HEALING: Final = 180.0
_REQUEST_LIMIT: Final = 30.0

WELL: Final = "def handle(data, context):\n    return ['well'] * len(data) if data else None\n"


@dataclass
class Scene:
    """One run of an incident; times are seconds, None where it never came."""

    directory: Path
    detected: float | None = None
    healed: float | None = None
    #: Requests that were not answered as they should have been.
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    def detect(self, sign: Callable[[], object], what: str) -> None:
        """Wait for the sign of the cause, which has just begun."""
        self.detected = self._wait(sign, DETECTION, what)

    def heal(self, is_well: Callable[[], object], what: str) -> None:
        """Wait until all is well, now that the cause is gone."""
        self.healed = self._wait(is_well, HEALING, what)

    def expect(self, holds: object, what: str) -> None:
        """Note a problem unless this holds."""
        if not holds:
            self.problems.append(what)

    @property
    def has_passed(self) -> bool:
        return self.detected is not None and self.healed is not None and not self.problems

    def _wait(self, condition: Callable[[], object], limit: float, what: str) -> float | None:
        began = time.monotonic()
        while (waited := time.monotonic() - began) < limit:
            if condition():
                return time.monotonic() - began
            time.sleep(min(0.25, max(0.02, waited / 10)))
        self.problems.append(f"not within {limit:g} s: {what}")
        return None


def metric(server: RunningServer, name: str, **labels: str) -> float:
    """Return the sum of the series of a metric that have these labels; 0 if there is none."""
    text = requests.get(f"{server.metrics}/metrics", timeout=_REQUEST_LIMIT).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def is_well(server: RunningServer, model: str) -> bool:
    """Return whether a model answers."""
    try:
        return server.predict(model, "x", timeout=_REQUEST_LIMIT).status_code == 200
    except requests.RequestException:
        return False


def live_status(server: RunningServer, path: str = "/live") -> int:
    """Return the status of a probe; 0 if there is no answer."""
    try:
        return requests.get(f"{server.inference}{path}", timeout=5).status_code
    except requests.RequestException:
        return 0
