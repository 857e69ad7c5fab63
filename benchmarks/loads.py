"""One run of wrk against one URL: how many requests it got through, how long the median took, and what went wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

SCRIPT = Path(__file__).with_name("load.lua")
RESULT = "RESULT "


class LoadFailed(RuntimeError):
    """The load generator is missing or broke, or the server answered wrongly: the figure would mean nothing."""


@dataclass(frozen=True)
class LoadResult:
    """What came of a run."""

    requests_per_second: float
    median_ms: float | None = None


class Target(Protocol):
    """Where a server answers."""

    @property
    def url(self) -> str:
        """Its HTTP address, without a path."""

    @property
    def grpc_target(self) -> str:
        """Its gRPC address as ``host:port``."""

    @property
    def authorization(self) -> dict[str, str]:
        """The headers that every request needs."""


class Load(Protocol):
    """Clients that each send the same request again as soon as they have the answer."""

    def run(self, target: Target, seconds: int) -> LoadResult:
        """Put the load on a server. Raises LoadFailed unless every request was answered rightly."""


@dataclass(frozen=True)
class HttpLoad:
    """What wrk posts, over so many connections."""

    connections: int
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    sequences: bool = False  # every connection is a sequence of its own
    prefix: str = "sequence-"  # with which their ids begin

    def run(self, target: Target, seconds: int) -> LoadResult:
        """Run wrk for `seconds`. Raises LoadFailed unless every request was answered with status 200."""
        wrk = shutil.which("wrk")
        if wrk is None:
            raise LoadFailed("There is no 'wrk' on the PATH; on Debian it is the package wrk.")
        # One thread per sequence (see load.lua); else one, which leaves the most of a small machine to the server.
        threads = self.connections if self.sequences else 1
        url = target.url + self.path
        with tempfile.NamedTemporaryFile() as body:
            body.write(self.body)
            body.flush()
            command = [wrk, f"-t{threads}", f"-c{self.connections}", f"-d{seconds}s", "--timeout", "10s"]
            command += ["-s", str(SCRIPT), url, "--", body.name, self.prefix if self.sequences else ""]
            headers = self.headers | target.authorization
            command += [text for header in headers.items() for text in header]
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
