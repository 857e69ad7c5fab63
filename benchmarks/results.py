"""What a comparison found: the values of every round, and the medians, ratios and spreads that follow from them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

OURS = "torchserve-py"
TORCHSERVE = "TorchServe 0.12"
MLSERVER = "MLServer 1.7"
TRUSS = "Truss 0.18"
MOSEC = "mosec 0.9"
BARE_AIOHTTP = "bare aiohttp"
BARE_GRPC = "bare grpc.aio"
YARDSTICKS = (BARE_AIOHTTP, BARE_GRPC)


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the lowest and highest of them."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class FigureResult:
    """One figure's values: server name -> one value per round. The rounds of all servers belong together in order."""

    name: str
    rival: str | None  # the server whose value it is compared with
    title: str
    unit: str
    goal: float
    higher_is_better: bool
    goal_is_for_the_value: bool  # and not for its ratio to the rival's
    values: dict[str, list[float]]

    def ratio(self) -> Spread | None:
        """This server over its rival, round by round; None if that was not measured."""
        return None if self.rival is None else self.share_of(self.rival)

    def share_of(self, other: str) -> Spread | None:
        """This server over another one, round by round; None if that was not measured."""
        if other not in self.values:
            return None
        return Spread.of([ours / theirs for ours, theirs in zip(self.values[OURS], self.values[other], strict=True)])

    def is_met(self) -> bool | None:
        """Whether the goal is reached; None if there is nothing to tell it by."""
        achieved = Spread.of(self.values[OURS]) if self.goal_is_for_the_value else self.ratio()
        if achieved is None:
            return None
        return achieved.median >= self.goal if self.higher_is_better else achieved.median <= self.goal


@dataclass(frozen=True)
class Results:
    """A whole comparison."""

    when: str
    machine: dict[str, str]
    rounds: int
    seconds: int
    figures: list[FigureResult]

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """What `write` has written. Raises ValueError, TypeError or KeyError if that is something else."""
        stored = json.loads(path.read_text())
        return cls(**stored | {"figures": [FigureResult(**figure) for figure in stored["figures"]]})

    def with_those_of(self, earlier: Results, order: list[str]) -> Results:
        """The same and the figures that only an earlier run has, in the order of their names."""
        new = {figure.name: figure for figure in self.figures}
        merged = {figure.name: figure for figure in earlier.figures} | new
        return replace(self, figures=sorted(merged.values(), key=lambda figure: order.index(figure.name)))


def today() -> str:
    """The date for a report, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def machine_facts() -> dict[str, str]:
    """What a reader must know of the machine to judge the figures, and nothing that names it. Call before a run."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": f"{platform.python_version()} of {platform.python_build()[1]}, {platform.python_compiler()}",
        "Java": _first_line("java", "-version"),
        "wrk": _first_line("wrk", "--version"),
        "h2load": _first_line("h2load", "--version"),
        "load before the run": f"{os.getloadavg()[0]:.1f} (one-minute average; with other work the figures say little)",
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _first_line(program: str, argument: str) -> str:
    if shutil.which(program) is None:
        return "not installed"
    done = subprocess.run([program, argument], capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0].split(" Copyright")[0]
