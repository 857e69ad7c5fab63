"""Workers that follow a load which rises and falls: draws docs/scaling.svg from a run of the real server.

    python -m benchmarks.rising_load [--picture docs/scaling.svg]

A request takes 100 ms of a simulated device and hardly any processor, so one worker answers ten requests per second.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import aiohttp

from benchmarks import launchers
from benchmarks.benchmark_models import ROOT, SOURCES, HandlerModel, Probe
from benchmarks.servers import Server
from benchmarks.timeline import Moment, draw

STEP = 0.1
TARGET_WAIT = 0.5
CONFIG = {
    "minWorkers": 0,
    "maxWorkers": 4,
    "scaling": {"targetWaitMSec": int(TARGET_WAIT * 1000), "downAfterSec": 10, "idleTimeoutSec": 15},
}
#: Requests per second at moments (seconds); between two of them the rate changes evenly.
LOAD = ((0, 0), (20, 0), (20.1, 4), (40, 4), (70, 28), (95, 28), (115, 4), (145, 4), (145.1, 0), (180, 0))
_READY = re.compile(r"^ts_workers_ready\{.*\} (\S+)$", re.MULTILINE)


@dataclass
class Client:
    """Sends requests, and knows since when those wait that have no answer yet."""

    session: aiohttp.ClientSession
    server: Server
    waiting: dict[int, float] = field(default_factory=dict)
    sent: int = 0
    failed: int = 0

    async def send(self) -> None:
        """Send one request, and wait for its answer."""
        number = self.sent
        self.sent += 1
        self.waiting[number] = time.monotonic()
        url = f"{self.server.url}/predictions/device"
        async with self.session.post(url, data=b"x", headers=self.server.authorization) as response:
            await response.read()
            self.failed += response.status != 200
        del self.waiting[number]

    async def moment(self, at: float) -> Moment:
        """What is so now."""
        async with self.session.get(self.server.metrics_url, params={"name[]": "ts_workers_ready"}) as response:
            ready = _READY.search(await response.text())
        now = time.monotonic()
        wait = max([0.0, *(now - since - STEP for since in self.waiting.values())])
        return Moment(at, rate_at(at), int(float(ready[1])) if ready else 0, wait)


def rate_at(moment: float) -> float:
    """Requests per second."""
    for (begin, before), (end, after) in pairwise(LOAD):
        if begin <= moment < end:
            return before + (after - before) * (moment - begin) / (end - begin)
    return 0.0


async def follow(server: Server) -> list[Moment]:
    """Send the load, and look twice a second."""
    moments: list[Moment] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        client = Client(session, server)
        began = time.monotonic()
        due = 0.0
        while (at := time.monotonic() - began) < LOAD[-1][0]:
            if len(moments) <= 2 * at:
                moments.append(await client.moment(at))
            due += rate_at(at) * 0.02
            while due >= 1:
                due -= 1
                group.create_task(client.send())
            await asyncio.sleep(began + at + 0.02 - time.monotonic())
    print(f"{client.sent} requests, {client.failed} failed", flush=True)
    return moments


def main() -> int:
    """Run the load, print what was seen, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "scaling.svg")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile() as busy_file:
        busy_file.write(struct.pack("d", 0.0))
        busy_file.flush()
        handler = {"step_ms": STEP * 1000, "busy_file": busy_file.name}
        probe = Probe("/predictions/device", b"x", b"x".__eq__)
        model = HandlerModel("device", SOURCES / "device_handler.py", {**CONFIG, "handler": handler}, probe)
        with Server(launchers.this_server(sys.executable), model) as server:
            moments = asyncio.run(follow(server))
    for each in moments[::10]:
        print(f"{each.at:6.1f} s {each.rate:5.1f} requests/s {each.workers} workers, longest wait {each.wait:.2f} s")
    options.picture.write_text(draw(moments, TARGET_WAIT), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
