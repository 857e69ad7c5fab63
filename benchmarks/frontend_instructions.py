"""How many instructions of the processor a request costs the frontend, counted by valgrind's callgrind.

    python -m benchmarks.frontend_instructions [--checkout FOLDER] [LOAD …]

Times depend on what else a machine does. This count depends on it less: batches are full, but how many requests a turn
of the event loop meets differs, so that two runs on a busy machine may differ by a tenth. Compare several runs,
alternately.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.benchmark_models import ROOT, BenchmarkModel, HandlerModel
from benchmarks.durability import model_with
from benchmarks.launchers import Ports, TorchServeLike
from benchmarks.results import OURS
from benchmarks.servers import Server, ServerFailed
from benchmarks.torchserve_loads import ECHO, ECHO_BATCHES, STATEFUL

STORED = model_with({"store": "file"})
CONNECTIONS = 32
ROUNDS = 20
WARM_UP_ROUNDS = 5
DUMP_LIMIT = 60.0  # seconds
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Counted(TorchServeLike):
    """A checkout's server under callgrind, which counts only while it is told to."""

    daemonizes = False

    def __init__(self, checkout: Path) -> None:
        sources = ":".join(str(checkout / name) for name in ("frontend", "backend"))
        super().__init__(OURS, [], {"PYTHONPATH": sources, "PYTHONHASHSEED": "0"}, "disable_token_authorization=true\n")

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """Return the command of the server, without the launcher that would check the configuration first."""
        arguments = super().command(folder, ports, model)[1:]
        counter = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind.out"]
        return [*counter, sys.executable, "-P", "-m", "torchserve_py.server", *arguments]


def request(path: str, body: bytes, sequence: str = "") -> bytes:
    """Return the bytes of a request as wrk sends them."""
    header = f"ts_request_sequence_id: {sequence}\r\n" if sequence else ""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_answer(connection: socket.socket) -> bytes:
    """Return a whole answer with a length. Raises ServerFailed: its status is not 200."""
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        if end and len(body) == int((_LENGTH.search(head) or [b"", b"0"])[1]):
            break
        answer += connection.recv(65536) or b"\r\n\r\n"
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ServerFailed(f"It answered {answer[:200]!r}.")
    return body


def put_load(port: int, requests: list[bytes], rounds: int) -> None:
    """Send the requests over a connection each, all at once, as often as ``rounds`` says."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in requests]
    for _ in range(rounds):
        for connection, sent in zip(connections, requests, strict=True):
            connection.sendall(sent)
        for connection in connections:
            read_answer(connection)
    for connection in connections:
        connection.close()


def control(server: Server, order: str) -> None:
    """Tell callgrind what to do, over the pipes that it has made in the server's folder."""
    process = server.frontend()
    command = ["callgrind_control", order, str(process.pid)]
    environment = {**os.environ, "TMPDIR": process.cwd()}
    subprocess.run(command, check=True, capture_output=True, timeout=DUMP_LIMIT, env=environment)


def instructions(checkout: Path, model: BenchmarkModel, requests: list[bytes]) -> float:
    """Start the server of a checkout; return how many instructions one of the requests costs its frontend."""
    with Server(Counted(checkout), model) as server:
        port = int(server.url.rpartition(":")[2])
        put_load(port, requests, WARM_UP_ROUNDS)
        control(server, "--instr=on")
        put_load(port, requests, ROUNDS)
        control(server, "--instr=off")
        control(server, "--dump")
        dump = Path(server.frontend().cwd()) / "callgrind.out.1"
        deadline = time.monotonic() + DUMP_LIMIT
        while not dump.exists() or not (found := _TOTALS.findall(dump.read_text())):
            if time.monotonic() > deadline:
                raise ServerFailed("callgrind has written nothing.")
            time.sleep(0.1)
        return int(found[-1]) / ROUNDS / len(requests)


def in_full_batches(model: HandlerModel) -> HandlerModel:
    """Return a model whose batches wait until they are full; else they would hold less on a busy machine."""
    return replace(model, config=model.config | {"maxBatchDelay": 2_000})


LOADS: dict[str, Callable[[], tuple[BenchmarkModel, list[bytes]]]] = {
    "echo": lambda: (ECHO, [request(ECHO.probe.path, b"x")] * CONNECTIONS),
    "batches": lambda: (in_full_batches(ECHO_BATCHES), [request(ECHO_BATCHES.probe.path, b"x")] * CONNECTIONS),
    "sequences": lambda: (
        in_full_batches(STATEFUL),
        [request(STATEFUL.probe.path, b"1", f"s{n}") for n in range(CONNECTIONS)],
    ),
    "stored": lambda: (
        in_full_batches(STORED),
        [request(STORED.probe.path, b"2", f"s{n}") for n in range(CONNECTIONS)],
    ),
}


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that counts what requests of `LOADS` cost the server of a checkout."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description.partition("\n")[0])
    made.add_argument("--checkout", type=Path, default=ROOT, help="whose sources to run (default: these)")
    made.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(LOADS)} (default: all)")
    return made


def main() -> int:
    """The command. Returns 1 if a server failed."""
    arguments = parser("frontend_instructions", __doc__).parse_args()
    try:
        for name in arguments.loads or LOADS:
            count = instructions(arguments.checkout.resolve(), *LOADS[name]())
            print(f"{name}: {count:,.0f} instructions of the frontend per request", flush=True)
    except ServerFailed as error:
        print(f"frontend_instructions: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
