"""The frontend's end of a worker's connections, for tests: a listening Unix socket and what comes over it."""

import math
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchserve_py.core.models.worker_modules import ROW_READERS
from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.continuous_batching.continuous import ContinuousHandler
from ts.protocol.frames import FrameBuffer, encode
from ts.protocol.messages import (
    NO_HISTORIES,
    Histories,
    InferFrame,
    InferRow,
    SequenceNews,
    StepHistory,
    decode_infer,
)
from ts.runtime.loader import load_service
from ts.runtime.torchserve_handler import TorchServeHandler

BACKEND = Path(__file__).parents[3] / "backend"
DEADLINE_SECONDS = 60.0
OK = {"ok": True, "status": 200, "message": "", "traceback": "", "declares": {}}


def load_message(model_dir: Path, handler: str = "handler.py", **changes: Any) -> dict[str, Any]:
    """Return a load message for the handler in ``model_dir``."""
    message: dict[str, Any] = {
        "contract": "torchserve",
        "runtime": "",
        "adapters": ["ts.contracts.served_functions.adapter"],
        "forms": "ts.contracts.forms.form_bodies",
        "model_name": "echo",
        "model_version": "1.0",
        "model_dir": str(model_dir),
        "manifest": {},
        "handler": handler,
        "gpu_id": None,
        "gpu_room": None,
        "batch_size": 4,
        "continuous": False,
        "asynchronous": False,
        "sequences": False,
        "steps": "ts.sequences.steps.opening",
        "envelope": None,
        "decode_input_request": True,
        "limit_max_image_pixels": True,
        "server_version": "0.1.0",
        "max_response_size": 6_553_500,
        "max_call_size": 0,
        "metrics": [],
        "preparations": {},
        "protocols": dict(ROW_READERS),
        "observers": {},
        "processors": 1,
        "header_keys": ["ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"],
    }
    if changes.get("asynchronous"):
        message["runtime"] = "ts.contracts.async_calls.async_handler"
    if changes.get("continuous"):
        message["runtime"] = "ts.contracts.continuous_batching.continuous"
    return {**message, **changes}


def row(job_id: str, body: Any = b"", content_type: str | None = None, headers: Any = ()) -> InferRow:
    """Return an infer row."""
    return InferRow(job_id, headers, content_type, body, None, False)


class Peer:
    """The frontend's end of one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(DEADLINE_SECONDS)
        self._buffer = FrameBuffer()
        self._messages: list[list[Any]] = []

    def send(self, *message: Any) -> None:
        self.send_together(list(message))

    def send_together(self, *messages: list[Any]) -> None:
        """Send messages so that the worker gets them in one read."""
        self._socket.sendall(b"".join(buffer for message in messages for buffer in encode(message, large=True)))

    def receive(self) -> list[Any]:
        while not self._messages:
            count = self._socket.recv_into(self._buffer.writable())
            if count == 0:
                raise EOFError("the worker closed the connection")
            self._buffer.received(count)
            self._messages.extend(self._buffer.messages())
        return self._messages.pop(0)

    def arrived(self) -> list[list[Any]]:
        """Return all messages that the worker has sent so far."""
        self._socket.setblocking(False)
        try:
            while count := self._socket.recv_into(self._buffer.writable()):
                self._buffer.received(count)
                self._messages.extend(self._buffer.messages())
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(DEADLINE_SECONDS)
        messages, self._messages = self._messages, []
        return messages

    def result_rows(self) -> list[list[Any]]:
        """Return the rows of all results that the worker has sent so far."""
        return [Result(row) for message in self.arrived() if message[0] == "results" for row in message[1]]

    def close(self) -> None:
        self._socket.close()


class Result(list[Any]):
    """A result row; what it tells of sequences is not among its fields but in ``news``."""

    def __init__(self, row: list[Any]) -> None:
        super().__init__(row[:7])
        self.news = SequenceNews(*row[7]) if row[7] is not None else SequenceNews()


class FrontendStub:
    """Listens as the frontend does."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(DEADLINE_SECONDS)
        self._peers: list[Peer] = []
        self._processes: list[subprocess.Popen[str]] = []
        #: The ids of the rows that workers got.
        self.sent: set[str] = set()

    def connect(self) -> tuple[FrontendConnection, Peer]:
        """Return both ends of a connection whose hello is already read."""
        connection = FrontendConnection(self.path, "jobs", "token")
        peer, _ = self.accept()
        return connection, peer

    def accept(self) -> tuple[Peer, dict[str, Any]]:
        """Return the next connection and what it said hello with."""
        peer = Peer(self._listener.accept()[0])
        self._peers.append(peer)
        kind, hello = peer.receive()
        assert kind == "hello"
        return peer, hello

    def start_worker(self, model_dir: Path) -> subprocess.Popen[str]:
        """Start a real worker process in ``model_dir``."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        environment = {**inherited, "PYTHONPATH": str(BACKEND), "TS_WORKER_TOKEN": "secret"}
        command = [sys.executable, "-P", "-m", "ts.process.worker", "--socket", self.path]
        process = subprocess.Popen(
            command, cwd=model_dir, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self._listener.close()
        for process in self._processes:
            process.kill()
            process.communicate()


class Worker:
    """A worker without its process: a runtime, and the frontend's end of its connection."""

    def __init__(self, frontend: FrontendStub, model_dir: Path, handler: str, **changes: Any) -> None:
        message = load_message(model_dir, handler, **changes)
        self._frontend = frontend
        self.connection, self.peer = frontend.connect()
        self.service = load_service(message)  # type: ignore[arg-type]
        kind = ContinuousHandler if message["continuous"] else TorchServeHandler
        self.runtime = kind(self.service, self.connection, message)  # type: ignore[arg-type]

    @property
    def module(self) -> Any:
        """The handler's module, where its code finds what a test gives it."""
        return sys.modules[self.service.entry_point.__module__]

    def admit(self, *rows: InferRow) -> None:
        """Pass rows to the worker, with what a frontend knows of those that it has sent before."""
        again = {row.job_id: StepHistory(-math.inf, True, "") for row in rows if row.job_id in self._frontend.sent}
        self._frontend.sent.update(row.job_id for row in rows)
        self.admit_frame(rows, again)

    def admit_frame(self, rows: Sequence[InferRow], histories: Histories = NO_HISTORIES) -> None:
        """Pass rows to the worker, with what a test says of the time before."""
        self.runtime.admit(InferFrame(rows, histories, None))

    def infer(self, *rows: InferRow) -> list[list[Any]]:
        """Run a batch (or one step) and return the result rows that were sent."""
        self.admit(*rows)
        self.runtime.step()
        return self.peer.result_rows()

    def step(self) -> list[list[Any]]:
        """Take in what the frontend sent, run one step and return the result rows that were sent."""
        while (message := self.connection.receive(wait=False)) is not None:
            assert message[0] == "infer"
            self.runtime.admit(decode_infer(*message[1:]))
        self.runtime.step()
        return self.peer.result_rows()
