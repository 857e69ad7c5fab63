"""Servers whose workers are on a Ray cluster share Redis, and nodes come and go while all else is killed and frozen.

    python -m tests.chaos.ray_nodes --seconds 120

The clients are those of ``tests.chaos.chaos``: whatever they see that is not what they were told is a contradiction.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tests.chaos import chaos
from tests.chaos.disasters import PERIOD, Disasters, Event
from tests.chaos.outcome import tell
from tests.chaos.timeline import Timeline
from tests.fleet.ray.ray_cluster import RayNodes

#: A node has room for so many workers; all nodes together have room for all workers while one of them is away.
NODES, WORKERS_OF_NODE = 3, 2


class RayDisasters(Disasters):
    """What happens to servers, their workers on nodes, and the nodes."""

    nodes: RayNodes

    @property
    def events(self) -> list[Event]:
        return [
            *super().events,
            *[("node killed", self.kill_node)] * 3,
            ("actor killed", self.kill_actor),
            ("driver of Ray killed", self.kill_driver),
            ("head frozen", self.freeze_head),
        ]

    def fill(self) -> None:
        """Start nodes until all are there."""
        while len(self.nodes.present) < NODES:
            self.nodes.add(num_cpus=WORKERS_OF_NODE)

    async def kill_node(self) -> None:
        """Kill a node with all that runs there; another one comes after a while."""
        await asyncio.to_thread(self.nodes.remove, random.choice(self.nodes.present))
        await asyncio.sleep(PERIOD * random.random())
        await asyncio.to_thread(self.fill)

    async def kill_actor(self) -> None:
        """SIGKILL of the process through which Ray knows a worker."""
        workers = self._workers()
        if workers and (actor := random.choice(workers).parent()) is not None:
            actor.kill()

    async def kill_driver(self) -> None:
        """SIGKILL of the process by which a server belongs to the cluster; its workers die with it."""
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            for each in random.choice(self.servers).server.children():
                if "torchserve_py.fleet.ray.ray_driver" in each.cmdline():
                    each.kill()

    async def freeze_head(self) -> None:
        """SIGSTOP of the head of the cluster for a while."""
        with self.nodes.frozen_head():
            await asyncio.sleep(PERIOD * random.random())

    def _signal_worker(self, number: signal.Signals) -> psutil.Process | None:
        workers = self._workers()
        if not workers:
            return None
        worker = random.choice(workers)
        worker.send_signal(number)
        return worker

    def _workers(self) -> list[psutil.Process]:
        """Return the worker processes of this run, wherever they are."""
        return [each for each in psutil.process_iter() if self._is_ours(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return (
                "ts.process.worker" in process.cmdline()
                and process.environ().get("CHAOS_DIRECTORY") == os.environ["CHAOS_DIRECTORY"]
            )
        except psutil.Error:
            return False


def run(seconds: float) -> chaos.Report:
    """Let things happen for so long; return what was survived."""
    report = chaos.Report("redis")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        os.environ["CHAOS_DIRECTORY"] = directory  # for the nodes, whose workers inherit it
        with RayNodes() as nodes:
            limits: dict[str, Any] = {"worker_launcher": "ray", "ray_address": nodes.address}
            limits |= {"worker_heartbeat_timeout": 2, "drain_timeout": 1}
            timeline = Timeline(chaos.IDLE_LIMIT)
            models = {"chaos": chaos.MODEL}
            disasters = RayDisasters("redis", Path(directory), models, chaos.CONFIG, timeline, limits)
            disasters.nodes = nodes
            disasters.fill()
            with disasters.running():
                asyncio.run(chaos.endure(disasters, report.tally, seconds))
                disasters.count_deaths()
    report.events = disasters.happened
    report.seconds = time.monotonic() - began
    return report


def main() -> int:
    """Run from the command line; return 0 if nothing was contradicted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    return tell([run(parser.parse_args().seconds)])


if __name__ == "__main__":
    sys.exit(main())
