"""`system_metrics_cmd`: a Python script of the operator that prints metrics of the host.

As in TorchServe it is run every `metric_time_interval` seconds with the server's Python, gets the ids of the worker
processes on its standard input (one line, separated by commas), and prints lines in the form of
`ts.metrics.metric.Metric` up to an empty line:

    CPUUtilization.Percent:12.5|#Level:Host|#hostname:box,1646686978

A value becomes one of the server's metrics of that name, or one that `metrics_config` lists under `ts_metrics`.
"""

import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import ts

logger = logging.getLogger(__name__)

#: TorchServe's own script: the server measures the same without it.
BUILT_IN_SCRIPT = "ts/metrics/metric_collector.py"

_LINE = re.compile(
    r"\s*(?P<name>[\w\s]+)\.(?P<unit>[\w\s]+):(?P<value>[^|]+)\|#(?P<dimensions>[^|]*)"
    r"(?:\|#type:[^|,]+)?\|#hostname:(?P<hostname>[^,]+),[^,]+(?:,.*)?"
)


class HostReading(NamedTuple):
    """One value of a metric of the host; `dimensions` are values, in order, without the host's."""

    name: str
    dimensions: tuple[str, ...]
    value: float
    hostname: str | None = None


class SystemCommand:
    """A script and its arguments, as a shell would split them; one run may take `limit` seconds.

    A relative path starts from the current directory, or from the directory that holds the package `ts`.
    """

    def __init__(self, command: str, limit: float) -> None:
        script, *arguments = shlex.split(command)
        home = Path(ts.__file__).parents[1]
        if not Path(script).exists() and (home / script).exists():
            script = str(home / script)
        self._command = [sys.executable, script, *arguments]
        paths = [path for path in (os.environ.get("PYTHONPATH"), str(home)) if path]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._limit = limit

    def run(self, pids: Iterable[int]) -> list[HostReading]:
        """Run the script and return what it printed; what went wrong is logged. Blocks until it has ended."""
        try:
            done = subprocess.run(
                self._command,
                input=",".join(map(str, pids)) + "\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._limit,
                check=False,
                env=self._environment,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.warning("system_metrics_cmd failed: %s", error)
            return []
        if done.returncode or done.stderr:
            logger.warning("system_metrics_cmd exited with %d: %s", done.returncode, done.stderr.strip()[-2000:])
        readings = []
        for line in done.stdout.splitlines():
            if not line:
                break
            reading = parse_line(line)
            if reading is None:
                logger.warning("system_metrics_cmd printed a line that is no metric: %.200s", line)
            else:
                readings.append(reading)
        return readings


def parse_line(line: str) -> HostReading | None:
    """Return what a line says, or None if it is no metric. A dimension whose value holds a colon is left out."""
    match = _LINE.fullmatch(line.removeprefix("[METRICS]"))
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    pairs = (pair.split(":") for pair in match["dimensions"].split(","))
    return HostReading(match["name"], tuple(pair[1] for pair in pairs if len(pair) == 2), value, match["hostname"])
