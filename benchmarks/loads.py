"""One run of wrk against one URL: how many requests it got through, how long the median took, and what went wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("load.lua")
RESULT = "RESULT "


class LoadFailed(RuntimeError):
    """wrk is missing or broke, or the server answered some requests with an error: the figure would mean nothing."""


@dataclass(frozen=True)
class Load:
    """What wrk sends: `connections` clients that each post the same body again as soon as they have the answer."""

    connections: int
    text: str
    count: int = 1  # the body is `text`, this many times
    sequences: bool = False  # every connection is a sequence of its own


@dataclass(frozen=True)
class LoadResult:
    """What came of it."""

    requests_per_second: float
    median_ms: float


def run(load: Load, url: str, seconds: int) -> LoadResult:
    """Run wrk for `seconds`. Raises LoadFailed unless every request was answered with status 200."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise LoadFailed("There is no 'wrk' on the PATH; on Debian it is the package wrk.")
    # One thread per sequence (see load.lua); else one, which leaves the most of a small machine to the server.
    threads = load.connections if load.sequences else 1
    command = [
        wrk,
        f"-t{threads}",
        f"-c{load.connections}",
        f"-d{seconds}s",
        "--timeout",
        "10s",
        "-s",
        str(SCRIPT),
        url,
    ]
    command += ["--", load.text, str(load.count)]
    if load.sequences:
        command.append("sequence-")
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    lines = [line.removeprefix(RESULT) for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode != 0 or len(lines) != 1:
        raise LoadFailed(f"wrk ended with {done.returncode}: {done.stdout}{done.stderr}")
    result = json.loads(lines[0])
    if result["bad_status"] or result["socket_errors"] or not result["requests"]:
        raise LoadFailed(
            f"Of {result['requests']} requests to {url}, {result['bad_status']} got an error status and "
            f"{result['socket_errors']} a broken or timed-out connection."
        )
    return LoadResult(result["requests"] / result["seconds"], result["median_ms"])
