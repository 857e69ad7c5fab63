"""The setting ``debug``: the server tells how a worker is started, and waits for whoever does it."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

HANDLER = (
    WAITING
    + """
import os


def handle(data, context):
    if data and data[0]["body"] == "wait":
        wait_for("gate")
    return data and [str(os.getpid())] * len(data)
"""
)


def start_worker(server: RunningServer, number: int) -> subprocess.Popen[bytes]:
    """Do what the server said: the ``number``-th of its command lines."""

    def line() -> str | None:
        lines = re.findall(r"^cd .* ts\.process\.worker .*$", server.log(), re.MULTILINE)
        return lines[number] if len(lines) > number else None

    command = eventually(line, "the server says how to start a worker")
    return subprocess.Popen(["bash", "-c", command.replace("&& env", "&& exec env")], stdin=subprocess.DEVNULL)


def test_a_worker_is_started_by_hand(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "m", HANDLER, "responseTimeout: 1\n")
    with RunningServer({"m": folder}, {"debug": "true", "default_workers_per_model": 0}) as server:
        assert server.workers() == []
        worker = start_worker(server, 0)
        try:
            server.wait_ready()
            assert server.predict("m", "x").text == str(worker.pid)
            assert [each["pid"] for each in server.describe("m")[0]["workers"]] == [worker.pid]

            with ThreadPoolExecutor() as pool:
                held = pool.submit(server.predict, "m", "wait")
                Gate(folder).wait_until_reached()
                worker.kill()
                worker.wait(DEADLINE)
                Gate(folder).open()
                worker = start_worker(server, 1)
                assert held.result().text == str(worker.pid)
            assert server.predict("m", "y").text == str(worker.pid)
            assert server.scale("m", 0).status_code == 200
            assert worker.wait(DEADLINE) == 0
        finally:
            worker.kill()
            worker.wait(DEADLINE)
