"""What a journal costs the frontend for each request, in processor time, and of requests per second.

    python -m benchmarks.journal_cost [--seconds 4] [--rounds 3]

The same model, which returns its input, with `journal: on` and without, each on a server of its own; both are up, and
measured in turns. The journal's thread is one of the frontend's process, so its time is in the figures. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack
from dataclasses import replace

import psutil

from benchmarks import launchers
from benchmarks.frontend_cost import microseconds
from benchmarks.loads import LoadFailed
from benchmarks.servers import Server, ServerFailed
from benchmarks.torchserve_loads import ECHO, http

#: Bytes of a body, which is the answer, too; and clients.
BODIES = ((100, 32), (10_000, 32), (60_000, 8), (1_000_000, 8))


def main() -> int:
    """The command. Returns 1 if a server or a load failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journal_cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=4, help="length of one load (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each kind (default 3)")
    options = parser.parse_args()
    try:
        print_costs(options.seconds, options.rounds)
    except (LoadFailed, ServerFailed) as error:
        print(f"journal_cost: {error}", file=sys.stderr)
        return 1
    return 0


def print_costs(seconds: int, rounds: int) -> None:
    """Print the costs for bodies of each size."""
    print("| body and answer | without | with a journal | requests per second without | with |\n|---|---|---|---|---|")
    models = {"without": ECHO, "with": replace(ECHO, config={**ECHO.config, "journal": True})}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(launchers.this_server(sys.executable), model))
            for name, model in models.items()
        }
        for size, clients in BODIES:
            load = http(ECHO, clients, b"x" * size)
            costs: dict[str, list[float]] = {name: [] for name in servers}
            rates: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, server in servers.items():
                    costs[name] += microseconds(load, server, seconds, [psutil.Process(server.frontend().pid)])
                    rates[name].append(load.run(server, seconds).requests_per_second)
            cost = {name: statistics.median(each) for name, each in costs.items()}
            rate = {name: statistics.median(each) for name, each in rates.items()}
            print(
                f"| {size:,} B | {cost['without']:,.0f} µs | {cost['with']:,.0f} µs"
                f" | {rate['without']:,.0f} | {rate['with']:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
