"""How long robots wait for a policy that takes 150 ms for a batch of any size, with 1, 2, 4 and 8 of them.

    python -m benchmarks.robots [--seconds S] [--lerobot PYTHON]

Robots with openpi's client ask again as soon as they have an answer. Those with LeRobot's client, which need an
interpreter with LeRobot and the client's extra, ask while they execute actions, 30 per second. One worker serves all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from benchmarks import launchers
from benchmarks.benchmark_models import ROOT, HandlerModel, Probe
from benchmarks.servers import Server

ROBOTS = (1, 2, 4, 8)
#: Robots start within this time of each other (seconds), and what they do before is not measured.
SPREAD = 0.4
#: The goal: the 99th percentile with several robots, for each millisecond with one.
MOST_RATIO = 1.3
#: Returns how many milliseconds each observation of so many robots waited for its actions.
Run = Callable[[Server, int, float], list[float]]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robots", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of robots (default 20)")
    parser.add_argument("--lerobot", metavar="PYTHON", help="an interpreter with LeRobot")
    options = parser.parse_args()
    kinds: dict[str, Run] = {"openpi": openpi}
    if options.lerobot:
        kinds["LeRobot"] = lambda *run: lerobot(options.lerobot, *run)
    with Server(launchers.this_server(sys.executable, "disable_token_authorization=true\n"), _model()) as server:
        for name, run in kinds.items():
            alone = 0.0
            for robots in ROBOTS:
                waits = run(server, robots, options.seconds)
                percentiles = statistics.quantiles(waits, n=100, method="inclusive")
                alone = alone or percentiles[98]
                print(
                    f"{name:8} {robots} robots: {len(waits):4} chunks, half within {percentiles[49]:4.0f} ms,"
                    f" 99 % within {percentiles[98]:4.0f} ms: {percentiles[98] / alone:.2f} of one robot's"
                    f" (goal: {MOST_RATIO:g})"
                )
    return 0


def _model() -> HandlerModel:
    config = {
        "batchSize": 8,
        "maxBatchDelay": 10,
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": 60_000,
        "maxNumSequence": 100,
        "openpi": {},
    }
    probe = Probe("/predictions/policy", b"", lambda answer: True, {"ts_request_sequence_id": "first"})
    return HandlerModel("policy", ROOT / "benchmarks" / "models" / "policy_handler.py", config, probe)


def openpi(server: Server, robots: int, seconds: float) -> list[float]:
    """Run robots with openpi's client, each in a thread."""
    waits: list[float] = []
    observation = {"state": np.zeros(6), "image": np.zeros((224, 224, 3), np.uint8)}

    def run(number: int) -> None:
        policy: Any = WebsocketClientPolicy(f"{server.url.replace('http', 'ws')}/openpi/policy")
        time.sleep(SPREAD * number / robots)
        policy.infer(observation)
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            policy.infer(observation)
            if began > end - seconds + SPREAD:
                waits.append(1000 * (time.perf_counter() - began))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(robots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


def lerobot(python: str, server: Server, robots: int, seconds: float) -> list[float]:
    """Run robots with LeRobot's client, each in a process."""
    command = [python, str(ROOT / "benchmarks" / "lerobot_robot.py"), server.grpc_target, str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "clients" / "python")}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    running: list[Any] = [subprocess.Popen(command, env=environment, **pipes) for _ in range(robots)]
    for each in running:
        each.stdout.readline()  # it has imported LeRobot, which takes long
    for each in running:
        time.sleep(SPREAD / robots)
        each.stdin.write("go\n")
        each.stdin.flush()
    answers = [json.loads(each.communicate(timeout=seconds + 300)[0].splitlines()[-1]) for each in running]
    gap, first = max(max(each["gaps"]) for each in answers), max(each["first"] for each in answers)
    print(f"the longest gap between two actions: {gap:.0f} ms; the longest wait for a first chunk: {first:.0f} ms")
    return [wait for each in answers for wait in each["latencies"]]


if __name__ == "__main__":
    sys.exit(main())
