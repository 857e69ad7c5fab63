"""Whether the threads that a worker computes with by default are near the best number, alone and beside other load.

    python -m benchmarks.threads [--workers 2] [--rounds 5] [--seconds 1] [--against CHECKOUT]

Four small networks are served by several servers, one with the default of `threads`, the others with 1, 2, 4 and
PyTorch's own number (all processors). All servers are up. In each round they take turns with each network, in random
order: first alone, then beside a busy process per processor. Two clients per worker send their next request when they
have an answer; they share the processors with the server. Given are requests per second and, in brackets, milliseconds
of processor time of the server and its workers per request (medians of the rounds). The last column is the default over
the best setting (the median of the rounds' ratios).
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from benchmarks import launchers
from benchmarks.benchmark_models import SOURCES, HandlerModel, Probe
from benchmarks.servers import Server

DEFAULT = "default"
OTHER = "default of the other checkout"
MODELS = ("MLP", "CNN", "encoder", "language model")
PATH = "/predictions/small"
CLIENTS_PER_WORKER = 2
#: A loop that does nothing else, as a process of its own.
BUSY = (sys.executable, "-c", "while True: pass")
#: Requests to each network before the first round: enough for both workers to have had some.
WARM_UP = 8
#: Seconds that a client waits for an answer.
LIMIT = 120.0


class Measured(NamedTuple):
    """What a burst of requests came to."""

    rate: float  # requests per second
    processor: float  # milliseconds of processor time per request


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a burst of requests (default 1)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, for its default")
    options = parser.parse_args()
    if "OMP_NUM_THREADS" in os.environ:
        raise SystemExit("OMP_NUM_THREADS decides for all settings: unset it")
    here = launchers.this_server(sys.executable)
    settings = {DEFAULT: (here, None)} | {
        str(each): (here, each) for each in sorted({1, 2, 4, torch.get_num_threads()})
    }
    if options.against:
        settings[OTHER] = launchers.this_server(sys.executable, checkout=options.against.resolve()), None
    found: dict[tuple[str, str, str], list[Measured]] = {}
    random_ = random.Random(1)
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(launcher, model(options.workers, number)))
            for name, (launcher, number) in settings.items()
        }
        for name, server in servers.items():
            print(f"{name}: {warm_up(server, WARM_UP * options.workers)} threads", flush=True)
        for number in range(options.rounds):
            for load, processes in (("alone", 0), ("beside others", os.cpu_count() or 1)):
                with busy(processes):
                    for network in MODELS:
                        # In random order, since what ran before makes a difference.
                        order = random_.sample([*servers], len(servers))
                        for name in order:
                            measured = measure(servers[name], network, options.workers, options.seconds)
                            found.setdefault((network, load, name), []).append(measured)
            print(f"round {number + 1}: load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    print(table(found, [*settings]))


def model(workers: int, threads: int | None) -> HandlerModel:
    """Return the model with all networks, served with so many threads per worker, or by default."""
    config = {"minWorkers": workers, "maxWorkers": workers} | ({} if threads is None else {"threads": threads})
    probe = Probe(PATH, MODELS[0].encode(), bytes.isdigit)
    return HandlerModel("small", SOURCES / "small_models_handler.py", config, probe)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processors busy."""
    started = [subprocess.Popen(BUSY) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(server: Server, network: str, workers: int, seconds: float) -> Measured:
    """Send requests for a while, each client the next one when it has an answer."""
    counts = [0] * (workers * CLIENTS_PER_WORKER)
    processes = [server.frontend(), *server.below()]
    began, before = time.monotonic(), sum(map(_spent, processes))

    def ask(client: int) -> None:
        while time.monotonic() < began + seconds:
            predict(server, connections[client], network)
            counts[client] += 1

    connections = [_connection(server) for _ in counts]
    clients = [threading.Thread(target=ask, args=(number,)) for number in range(len(counts))]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took, spent = time.monotonic() - began, sum(map(_spent, processes)) - before
    for connection in connections:
        connection.close()
    return Measured(sum(counts) / took, spent / sum(counts) * 1e3)


def table(found: dict[tuple[str, str, str], list[Measured]], settings: list[str]) -> str:
    """Return the table: a row for each network and load, a column for each setting."""
    lines = [f"| | | {' | '.join(settings)} | default / best |", "|---" * (len(settings) + 3) + "|"]
    for network, load in dict.fromkeys(key[:2] for key in found):
        rounds = {name: found[network, load, name] for name in settings}
        cells = [
            f"{statistics.median(each.rate for each in of):.3g} "
            f"({statistics.median(each.processor for each in of):.3g} ms)"
            for of in rounds.values()
        ]
        lines.append(f"| {network} | {load} | {' | '.join(cells)} | {against_best(rounds):.2f} |")
    return "\n".join(lines)


def against_best(rounds: dict[str, list[Measured]]) -> float:
    """Return the default's rate over that of the best other setting, round by round."""
    others = [name for name in rounds if name not in (DEFAULT, OTHER)]
    best = max(others, key=lambda name: statistics.median(each.rate for each in rounds[name]))
    pairs = zip(rounds[DEFAULT], rounds[best], strict=True)
    return statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)


def warm_up(server: Server, times: int) -> str:
    """Ask for each network so many times; return how many threads the last answer gives."""
    connection = _connection(server)
    threads = [predict(server, connection, network) for network in MODELS for _ in range(times)][-1]
    connection.close()
    return threads


def predict(server: Server, connection: http.client.HTTPConnection, network: str) -> str:
    """Return the answer of a network."""
    connection.request("POST", PATH, network, server.authorization | {"Content-Type": "text/plain"})
    response = connection.getresponse()
    answer = response.read().decode()
    if response.status != http.HTTPStatus.OK:
        raise SystemExit(f"{network}: {response.status} {answer}")
    return answer


def _connection(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT)


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
