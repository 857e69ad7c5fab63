"""Measures several servers with the same sessions, in turn, and writes the table of docs/benchmarks.md.

    python -m benchmarks.sessions.compare --torchserve FOLDER --litserve FOLDER --ray FOLDER [--every 10]

Each folder is a virtual environment with that server; one that is not named is left out. Every server runs the model of
``models/`` with one worker and its default settings. With ``--every`` a worker is killed every so many seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import launchers
from benchmarks.benchmark_models import BenchmarkModel, HandlerModel, Probe
from benchmarks.launchers import Launcher, Ports
from benchmarks.results import OURS, machine_facts
from benchmarks.servers import Server, ServerFailed
from benchmarks.sessions.measure import measure
from benchmarks.sessions.plan import Offered
from benchmarks.sessions.process_cost import Processes
from benchmarks.sessions.report import Report, table

MODELS: Final = Path(__file__).parent / "models"
_FIRST: Final = b"1 1"  # the state after a step that adds 1
_SEQUENCES: Final = {
    "sequenceBatching": True,
    "batchSize": 32,
    "maxBatchDelay": 1,
    "sequenceMaxIdleMSec": 60_000,
    "maxNumSequence": 2000,
    "maxSequenceJobQueueSize": 10,
}


@dataclass(frozen=True)
class Measured:
    """A server that is measured: how it is started, how steps reach it, and which of its processes are killed."""

    name: str
    launcher: Launcher
    model: HandlerModel
    protocol: str
    victims: str


class Script:
    """A server that is a Python file of ``models/``, run by the interpreter of its environment with a port."""

    environment: dict[str, str] = {}  # noqa: RUF012 (nobody changes it)
    daemonizes = False
    has_http = True

    def __init__(self, name: str, venv: Path, file: str) -> None:
        self.name = name
        self._command = [str(venv / "bin" / "python"), str(MODELS / file)]

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """Return its command."""
        return [*self._command, str(ports.http)]


def handler(file: str, **config: Any) -> HandlerModel:
    """Return the model as a handler of TorchServe or torchserve-py."""
    headers = {"ts_request_sequence_id": "probe", "ts_request_sequence_start": "true", "Content-Type": "text/plain"}
    probe = Probe("/predictions/counter", b"1", lambda answer: answer.strip() == _FIRST, headers)
    return HandlerModel("counter", MODELS / file, _SEQUENCES | config, probe)


def script(path: str) -> HandlerModel:
    """Return the model behind a server that is a script."""
    body = json.dumps({"session": "probe", "number": 1, "start": True, "end": True}).encode()
    probe = Probe(path, body, lambda answer: answer.strip(b'"\n ') == _FIRST, {"Content-Type": "application/json"})
    return HandlerModel("counter", MODELS / "counter_handler.py", {}, probe)


def servers(options: argparse.Namespace) -> list[Measured]:
    """Return the servers that are to be measured. Raises NotInstalled."""
    ours = launchers.this_server(sys.executable)
    memory, stored = handler("counter_handler.py"), handler("stored_counter_handler.py")
    stored.config["handler"] = {"cache": {"store": "file", "capacity": 2000}}
    found = [
        Measured(f"{OURS}, states in a file", ours, stored, "numbered", "ts.process.worker"),
        Measured(f"{OURS}, states in a file, live sessions", ours, stored, "live", "ts.process.worker"),
        Measured(f"{OURS}, states in memory", ours, memory, "torchserve", "ts.process.worker"),
    ]
    if options.torchserve:
        torchserve = launchers.torchserve(options.torchserve)
        found.append(Measured("TorchServe 0.12", torchserve, memory, "torchserve", "model_service_worker"))
    if options.litserve:
        litserve = Script("LitServe", options.litserve, "litserve_counter.py")
        found.append(Measured("LitServe, a dictionary", litserve, script("/predict"), "json", "spawn_main"))
    if options.ray:
        ray = Script("Ray Serve", options.ray, "ray_counter.py")
        found.append(Measured("Ray Serve, actors", ray, script("/"), "json", "ray::States"))
    return found


def run(measured: Measured, offered: Offered, every: float) -> Report:
    """Start a server, put the load on it, and return the report. Raises ServerFailed."""
    with Server(measured.launcher, measured.model) as server:
        processes = Processes(server.frontend().pid, measured.victims)
        url = server.url + measured.model.probe.path
        headers = server.authorization
        return asyncio.run(
            measure(measured.name, measured.protocol, url, headers, offered, processes=processes, kill_every=every)
        )


def main() -> int:
    """The command. Returns 1 if a server could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("torchserve", "litserve", "ray"):
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER", help="its virtual environment")
    parser.add_argument("--rate", type=float, default=Offered.rate, help="sessions per second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=Offered.seconds, help="how long sessions begin (%(default)s)")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two kills; 0: none (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports to FILE")
    options = parser.parse_args()
    offered, reports, failed = Offered(rate=options.rate, seconds=options.seconds), [], False
    for measured in servers(options):
        try:
            reports.append(run(measured, offered, options.every))
        except ServerFailed as error:
            print(error, file=sys.stderr)
            failed = True
    print(table(reports))
    if options.json:
        values = {"machine": machine_facts(), "offered": asdict(offered), "reports": [asdict(each) for each in reports]}
        options.json.write_text(json.dumps(values, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
