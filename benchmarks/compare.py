"""Runs the same loads against this server and the real TorchServe, alternately in one run, and says how they compare.

    scripts/install-torchserve
    python -m benchmarks.compare [--only NAME ...] [--rounds N] [--seconds S] [--no-torchserve] [--markdown FILE]

Both servers of a figure are up, warm and serve the same archive; while one is measured the other is suspended, so that
it takes no time from it. They take turns for N rounds. Printed are the medians, the median of the rounds' ratios, and
both extremes. Needs wrk, and about a minute per figure.
"""

from __future__ import annotations

import argparse
import gc
import signal
import statistics
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import loads, report, servers
from benchmarks.archives import ROOT
from benchmarks.figures import FIGURES, Figure, LoadFigure, SchedulerFigure, StartFigure
from benchmarks.results import OURS, FigureResult, Results, machine_facts, today
from benchmarks.scheduler_benchmark import OPEN_SEQUENCES, settings
from benchmarks.servers import Launcher, Server, ServerFailed

WARM_UP_SECONDS = 5
SCHEDULER_TURNS = 15  # a turn is short: a round takes the median of this many


def main() -> int:
    """The command. Returns the exit status: 1 if a server or a load failed, whether goals are met or not."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    machine = machine_facts()
    try:
        launchers = [servers.this_server(options.python)]
        if options.torchserve:
            launchers.append(servers.torchserve(options.torchserve_venv))
        figures = [figure for figure in FIGURES if not options.only or figure.name in options.only]
        found = [_measure_and_print(figure, launchers, options) for figure in figures]
    except (ServerFailed, loads.LoadFailed) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    results = Results(today(), machine, options.rounds, options.seconds, found)
    if options.json:
        results.write(options.json)
    if options.markdown:
        report.write_markdown(results, options.markdown)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=(__doc__ or "").partition("\n")[0]
    )
    names = [figure.name for figure in FIGURES]
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"measure these only: {', '.join(names)}"
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="turns of each server (default 5)")
    parser.add_argument("--seconds", type=_positive, default=5, help="length of one load run (default 5)")
    parser.add_argument("--no-torchserve", dest="torchserve", action="store_false", help="measure this server alone")
    parser.add_argument(
        "--torchserve-venv", type=Path, default=ROOT / ".torchserve-venv", help="where the real TorchServe is installed"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that runs this server (default: this one)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's values to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a report to FILE, and its chart beside it")
    return parser.parse_args()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _measure_and_print(figure: Figure, launchers: list[Launcher], options: argparse.Namespace) -> FigureResult:
    if isinstance(figure, LoadFigure):
        with_yardstick = [*launchers, servers.bare_aiohttp(options.python)] if figure.yardstick else launchers
        values = _measure_load(figure, with_yardstick, options.rounds, options.seconds)
    elif isinstance(figure, StartFigure):
        values = _measure_starts(figure, launchers, options.rounds)
    else:
        values = {OURS: _measure_scheduler(options.rounds)}
    result = FigureResult(
        name=figure.name,
        title=figure.title,
        unit=figure.unit,
        goal=figure.goal,
        higher_is_better=figure.higher_is_better,
        goal_is_for_the_value=isinstance(figure, SchedulerFigure),
        values=values,
    )
    print(report.as_text(result), flush=True)
    return result


def _measure_load(
    figure: LoadFigure, launchers: Iterable[Launcher], rounds: int, seconds: int
) -> dict[str, list[float]]:
    with ExitStack() as stack:
        up: list[Server] = []
        for launcher in launchers:
            server = stack.enter_context(Server(launcher, figure.model))
            loads.run(figure.load, server.url, WARM_UP_SECONDS)
            server.suspend()
            up.append(server)
        values: dict[str, list[float]] = {server.launcher.name: [] for server in up}
        for number in range(rounds):
            for server in up if number % 2 == 0 else reversed(up):
                server.resume()
                values[server.launcher.name].append(figure.read(loads.run(figure.load, server.url, seconds)))
                server.suspend()
        return values


def _measure_starts(figure: StartFigure, launchers: list[Launcher], rounds: int) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {launcher.name: [] for launcher in launchers}
    for number in range(rounds):
        for launcher in launchers if number % 2 == 0 else reversed(launchers):
            with Server(launcher, figure.model) as server:
                values[launcher.name].append(figure.read(server))
    return values


def _measure_scheduler(rounds: int) -> list[float]:
    """The cost of a step with the most open sequences over that with the fewest, round by round."""
    fewest, *_, most = settings()[-len(OPEN_SEQUENCES) :]
    ratios = []
    gc.collect()
    gc.freeze()  # as the server does after its start
    try:
        for _ in range(rounds):
            for setting in [fewest, most] * SCHEDULER_TURNS:
                setting.round()
            few, many = (statistics.median(setting.figures[-SCHEDULER_TURNS:]) for setting in (fewest, most))
            ratios.append(many / few)
    finally:
        gc.unfreeze()
    return ratios


if __name__ == "__main__":
    sys.exit(main())
