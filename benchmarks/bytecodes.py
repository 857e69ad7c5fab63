"""How many bytecodes of Python a request costs the server's event loop and its worker, counted by the interpreter.

    python -m benchmarks.bytecodes [--checkout FOLDER] [--functions 20] [LOAD …]

Unlike times, and unlike instructions of the processor, this count hardly depends on the machine and on what else it
does: two runs differ by one or two per cent. It says nothing of what happens in C, such as system calls. What is done
later for many requests together, logs and metrics, is counted apart: its share depends on how fast the machine is.
`tests/e2e/test_bytecodes.py` holds the counts to those in ``bytecodes.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.benchmark_models import ROOT
from benchmarks.frontend_instructions import LOADS, parser, put_load
from benchmarks.launchers import TorchServeLike
from benchmarks.results import OURS
from benchmarks.servers import Server, ServerFailed

COUNTER: Final = Path(__file__).with_name("bytecode_counter")
BASE: Final = Path(__file__).with_name("bytecodes.json")
WARM_UP_ROUNDS: Final = 5
ROUNDS: Final = 10
LIMIT: Final = 60.0  # seconds
#: Folders of the frontend whose code runs for many requests together.
LATER: Final = (
    "torchserve_py/base/logs/",
    "torchserve_py/base/metrics/",
    "torchserve_py/tools/console/",
    "torchserve_py/ops/log_files/",
    "torchserve_py/ops/metrics/",
    "/logging/__init__.py",
)


class Function(NamedTuple):
    """What a function costs per request, without those that it calls."""

    name: str
    bytecodes: float
    calls: float


class Counted(NamedTuple):
    """What a request costs: bytecodes on its way in the frontend, later in the frontend, and in the worker."""

    frontend: float
    later: float
    worker: float
    functions: list[Function]  # the dearest first


def count(load: str, checkout: Path = ROOT) -> Counted:
    """Start the server of a checkout, and count what a request of a load costs. Raises ServerFailed."""
    model, requests = LOADS[load]()
    sources = os.pathsep.join(map(str, (COUNTER, checkout / "frontend", checkout / "backend")))
    environment = {"PYTHONPATH": sources, "PYTHONHASHSEED": "0", "BYTECODES": "."}
    program = [sys.executable, "-P", "-m", "torchserve_py.cli"]
    server = Server(TorchServeLike(OURS, program, environment, "disable_token_authorization=true\n"), model)
    with server:
        port = int(server.url.rpartition(":")[2])
        put_load(port, requests, WARM_UP_ROUNDS)
        frontend, worker = server.frontend(), server.below()[-1]
        folders = {each.pid: Path(each.cwd()) for each in (frontend, worker)}
        for each in (worker, frontend):
            each.send_signal(signal.SIGUSR2)
        time.sleep(0.2)
        put_load(port, requests, ROUNDS)
        for each in (worker, frontend):
            each.send_signal(signal.SIGUSR2)
        put_load(port, requests, 1)  # a worker that waits for its next message takes the signal then
        counts = [_read(folders[each.pid] / f"{each.pid}.json") for each in (frontend, worker)]
    share = 1 / ROUNDS / len(requests)
    functions: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    sums = [0.0, 0.0, 0.0]
    for place, counted in enumerate(counts):
        for file, name, bytecodes, called in counted:
            index = 2 if place else int(any(folder in file for folder in LATER))
            sums[index] += bytecodes * share
            shown = f"{file.rpartition('torchserve_py/')[2].rpartition('backend/')[2]} {name}"
            functions[shown] += bytecodes
            calls[shown] += called
    dearest = [Function(name, each * share, calls[name] * share) for name, each in functions.most_common()]
    return Counted(sums[0], sums[1], sums[2], dearest)


def _read(path: Path) -> list[tuple[str, str, int, int]]:
    deadline = time.monotonic() + LIMIT
    while not path.exists():
        if time.monotonic() > deadline:
            raise ServerFailed(f"Nothing was counted: there is no {path.name}.")
        time.sleep(0.05)
    counted: list[tuple[str, str, int, int]] = json.loads(path.read_text())
    return counted


def main() -> int:
    """The command. Returns 1 if a server failed."""
    command = parser("bytecodes", __doc__)
    command.add_argument("--functions", type=int, default=0, metavar="N", help="show the N dearest functions")
    options = command.parse_args()
    try:
        for load in options.loads or LOADS:
            counted = count(load, options.checkout.resolve())
            print(
                f"{load}: {counted.frontend:,.0f} bytecodes of the frontend per request, {counted.later:,.0f} of its"
                f" logs and metrics, {counted.worker:,.0f} of the worker",
                flush=True,
            )
            for name, bytecodes, calls in counted.functions[: options.functions]:
                print(f"  {bytecodes:7.1f} in {calls:5.2f} calls  {name}")
    except ServerFailed as error:
        print(f"bytecodes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
