"""Whatever clients and workers do at random, each request gets its own answer, and is run once.

A request without a sequence whose worker has died runs a second time, by itself; a step never does.
"""

import random
import signal
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import psutil
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

#: A request is a line with its name, the milliseconds of its step and what to do, followed by bytes of any number.
HANDLER = """
import os
import time


class Handler:
    def initialize(self, context):
        self.notes = os.path.join(context.system_properties["model_dir"], "notes")
        self.answer = bytearray()

    def handle(self, data, context):
        if context.get_request_header(0, "describe"):
            return [{"described": True}]
        bodies = [row["body"] for row in data]
        lines = [bytes(body[: body.index(b"\\n")]).decode().split() for body in bodies]
        with open(self.notes, "a") as file:
            file.write(",".join(name for name, _, _ in lines) + "\\n")
        time.sleep(max(int(milliseconds) for _, milliseconds, _ in lines) / 1000)
        if any(order == "raise" for _, _, order in lines):
            raise ValueError("as ordered")
        if len(bodies) > 1:
            return bodies
        self.answer[:] = bodies[0]  # an object that changes with the next call
        return [self.answer]
"""
STATELESS = "batchSize: {size}\nmaxBatchDelay: {delay}\nminWorkers: 2\nmaxWorkers: 3\n"
STATEFUL = (
    "batchSize: 2\nmaxBatchDelay: 20\nminWorkers: 2\nmaxWorkers: 3\n"
    "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 20\nmaxSequenceJobQueueSize: 30\n"
)
CLIENTS = 8
REQUESTS = 15
#: What a client may be told for want of a worker that lives, or because of another request in its batch.
REFUSALS = {(500, "worker_died"), (503, "handler_error"), (410, "sequence_lost")}


class Load:
    """Clients of one model, the answers that they get, and what its handler has begun.

    Args:
        server: The server.
        model: The model, served from `folder`.
        folder: Where the handler notes what it begins.
        seed: What the choices of the clients follow from.
    """

    def __init__(self, server: RunningServer, model: str, folder: Path, seed: int) -> None:
        self.server, self.model, self.folder, self.seed = server, model, folder, seed
        self.outcomes: dict[str, tuple[int, str | None]] = {}
        self.wrong: list[str] = []

    def batches(self) -> list[list[str]]:
        """Return the names of the requests that the handler was called with, call by call."""
        notes = self.folder / "notes"
        return [line.split(",") for line in notes.read_text().splitlines()] if notes.exists() else []

    def run_client(self, number: int, *, sequence: bool) -> None:
        """Send requests, one after the other; leave some of them."""
        choices = random.Random(f"{self.seed} {number}")
        for step in range(REQUESTS):
            name = f"{number}:{step}"
            order = "raise" if choices.random() < 0.02 else "answer"
            line = f"{name} {choices.choice([0, 0, 2, 20])} {order}\n".encode()
            body = line + choices.randbytes(choices.choice([0, 100, 30_000, 400_000]))
            headers = {"content-type": "application/octet-stream"}
            if sequence:
                headers |= {"ts_request_sequence_id": f"s{number}", "ts_request_sequence_start": "true"}
            elif choices.random() < 0.1:
                headers["ts_request_priority"] = "1"
            if choices.random() < 0.1:
                self._leave(body, headers)
            else:
                self._ask(name, body, headers)

    def _ask(self, name: str, body: bytes, headers: dict[str, str]) -> None:
        url = f"{self.server.inference}/predictions/{self.model}"
        response = requests.post(url, data=body, headers=headers, timeout=DEADLINE)
        self.outcomes[name] = response.status_code, response.headers.get("ts-error-cause")
        if response.status_code == 200 and response.content != body:
            self.wrong.append(name)

    def _leave(self, body: bytes, headers: dict[str, str]) -> None:
        address = urlsplit(self.server.inference)
        assert address.port is not None
        head = "".join(f"{key}: {value}\r\n" for key, value in {**headers, "Content-Length": len(body)}.items())
        with socket.create_connection((str(address.hostname), address.port), DEADLINE) as client:
            client.sendall(f"POST /predictions/{self.model} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body)

    def disturb(self) -> None:
        """Kill, freeze and replace workers, and ask for descriptions, as the answers come in."""
        choices = random.Random(self.seed)
        acts = [self._kill, self._freeze, self._scale, self._describe]
        for count in range(15, CLIENTS * REQUESTS * 3 // 4, 15):
            eventually(lambda: len(self.outcomes) >= count, f"{count} answers of {self.model}")  # noqa: B023
            choices.choice(acts)(choices)

    def _worker(self, choices: random.Random) -> psutil.Process | None:
        workers = self.server.describe(self.model)[0]["workers"]
        pids = [each["pid"] for each in workers if each["status"] == "READY" and psutil.pid_exists(each["pid"])]
        return psutil.Process(choices.choice(pids)) if pids else None

    def _kill(self, choices: random.Random) -> None:
        if (worker := self._worker(choices)) is not None:
            worker.send_signal(signal.SIGKILL)

    def _freeze(self, choices: random.Random) -> None:
        if (worker := self._worker(choices)) is not None:
            worker.suspend()
            try:
                self.server.describe(self.model)
            finally:
                worker.resume()

    def _scale(self, choices: random.Random) -> None:
        self.server.scale(self.model, choices.randint(1, 3), synchronous="false")

    def _describe(self, choices: random.Random) -> None:
        requests.get(f"{self.server.management}/models/{self.model}?customized=true", timeout=DEADLINE)


@pytest.mark.parametrize(("model", "size", "delay"), [("single", 1, 0), ("batches", 4, 20), ("steps", 2, 0)])
def test_each_request_is_run_once_and_answered(model: str, size: int, delay: int, tmp_path: Path) -> None:
    config = STATEFUL if model == "steps" else STATELESS.format(size=size, delay=delay)
    folder = model_folder(tmp_path, model, HANDLER, config)
    with RunningServer(models={model: folder}, properties={"drain_timeout": 0}) as server:
        server.wait_ready()
        load = Load(server, model, folder, seed=size)
        disturber = Thread(target=load.disturb, daemon=True)
        disturber.start()
        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(load.run_client, each, sequence=model == "steps") for each in range(CLIENTS)]
        for each in running:
            each.result()
        disturber.join(DEADLINE)
        eventually(lambda: server.pending(model) == 0, "no request waits")
        begun = Counter(name for batch in load.batches() for name in batch)
        told = Counter(load.outcomes.values())
        assert not load.wrong, "answers of others"
        assert set(told) - {(200, None)} <= REFUSALS
        assert told[200, None] > CLIENTS * REQUESTS / 2
        most = 1 if model == "steps" else 2
        assert [name for name, count in begun.items() if count > most] == []
        last = {name: batch for batch in load.batches() for name in batch}
        assert [last[name] for name, count in begun.items() if count > 1 and len(last[name]) > 1] == []
        assert [name for name, (status, _) in load.outcomes.items() if status == 200 and not begun[name]] == []
        assert [line for line in server.log().splitlines() if "Traceback" in line and "MODEL_LOG" not in line] == []
        assert server.model_log().count("Traceback") == server.model_log().count("ValueError: as ordered")
