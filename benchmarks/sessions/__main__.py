"""Puts sessions on a server that runs, and reports which of their steps were in time, lost, doubled and out of order.

    python -m benchmarks.sessions http://127.0.0.1:8080/predictions/counter --protocol torchserve
    python -m benchmarks.sessions URL --protocol json --pid PID --kill worker --every 10

The model behind the address keeps a count and a checksum for each session (``state.py``; ``models/`` has it for several
servers). Sessions begin at random moments, whatever the server does; each has a step per period, some go away for
seconds and come back. A step without an answer is sent again. With ``--pid`` the server's processor time is measured,
and with ``--kill`` one of its processes whose command line has that text is killed every so many seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.sessions.measure import measure
from benchmarks.sessions.plan import Offered
from benchmarks.sessions.process_cost import Processes
from benchmarks.sessions.protocols import PROTOCOLS
from benchmarks.sessions.report import table


def main() -> int:
    """The command. Returns 1 if a step was lost, doubled or out of order."""
    options = _parse()
    offered = Offered(
        options.rate, options.period, options.steps, options.seconds, options.leaving, options.away, options.seed
    )
    headers = dict(header.split(": ", 1) for header in options.header)
    processes = Processes(options.pid, options.kill) if options.pid else None
    every = options.every if options.kill else 0.0
    report = asyncio.run(
        measure(options.name, options.protocol, options.url, headers, offered, options.patience, processes, every)
    )
    print(table([report]))
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n")
    return 1 if report.lost_steps or report.doubled_steps or report.reordered else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Offered()
    parser.add_argument("url", help="address of the model")
    parser.add_argument("--protocol", choices=sorted(PROTOCOLS), default="torchserve", help="how steps are sent")
    parser.add_argument("--name", default="server", help="of the server, for the table")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="a further header")
    parser.add_argument("--rate", type=float, default=usual.rate, help="sessions per second (%(default)s)")
    parser.add_argument("--period", type=float, default=usual.period, help="seconds between steps (%(default)s)")
    parser.add_argument("--steps", type=int, default=usual.steps, help="steps of a session (%(default)s)")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="how long sessions begin (%(default)s)")
    parser.add_argument("--leaving", type=float, default=usual.leaving, help="share that goes away (%(default)s)")
    parser.add_argument("--away", type=float, default=usual.away, help="for how many seconds (%(default)s)")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds for which a step is sent again")
    parser.add_argument("--seed", type=int, default=usual.seed, help="of what is random (%(default)s)")
    parser.add_argument("--pid", type=int, help="the server's process, for its processor time")
    parser.add_argument("--kill", default="", metavar="TEXT", help="kill processes of it with this in their command")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE")
    options = parser.parse_args()
    if options.kill and not options.pid:
        parser.error("--kill needs --pid: the processes that may be killed are those of the server")
    return options


if __name__ == "__main__":
    sys.exit(main())
