"""Runs the same loads against this server and others, alternately in one run, and says how they compare.

    scripts/install-torchserve; scripts/install-mlserver; scripts/install-truss; scripts/install-mosec
    python -m benchmarks.compare [--only NAME ...] [--rounds N] [--seconds S] [--alone] [--markdown FILE]

All servers of a figure are up, warm and serve the same model; while one is measured the others are suspended, so that
they take no time from it. They take turns for N rounds. Printed are the medians, the median of the rounds' ratios, and
both extremes. Needs wrk and h2load, and about a minute per figure.
"""

from __future__ import annotations

import argparse
import gc
import signal
import statistics
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import launchers, report
from benchmarks.benchmark_models import ROOT
from benchmarks.figures import FIGURES, Figure, LoadFigure, SchedulerFigure, StartFigure
from benchmarks.launchers import Launcher, NotInstalled
from benchmarks.loads import LoadFailed
from benchmarks.results import (
    BARE_AIOHTTP,
    BARE_GRPC,
    MLSERVER,
    MOSEC,
    OURS,
    TORCHSERVE,
    TRUSS,
    FigureResult,
    Results,
    machine_facts,
    today,
)
from benchmarks.scheduler_benchmark import OPEN_SEQUENCES, settings
from benchmarks.servers import Server, ServerFailed

WARM_UP_SECONDS = 8  # TorchServe's compiler needs some
SCHEDULER_TURNS = 15  # a turn is short: a round takes the median of this many


def main() -> int:
    """The command. Returns the exit status: 1 if a server or a load failed, whether goals are met or not."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    machine = machine_facts()
    try:
        figures = [figure for figure in FIGURES if not options.only or figure.name in options.only]
        found = [_measure_and_print(figure, _servers(figure, options), options) for figure in figures]
        results = Results(today(), machine, options.rounds, options.seconds, found)
        if options.json and options.json.exists():
            results = results.with_those_of(Results.read(options.json), [figure.name for figure in FIGURES])
    except (NotInstalled, ServerFailed, LoadFailed) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    if options.json:
        results.write(options.json)
    if options.markdown:
        report.write_markdown(results, options.markdown)
    return 0


def _servers(figure: Figure, options: argparse.Namespace) -> list[Launcher]:
    """This server, the figure's rival, and its yardstick."""
    names = [] if options.alone or figure.rival is None else [figure.rival]
    if isinstance(figure, LoadFigure) and figure.yardstick is not None:
        names.append(figure.yardstick)
    makers: dict[str, Callable[[], Launcher]] = {
        TORCHSERVE: lambda: launchers.torchserve(options.torchserve_venv),
        MLSERVER: lambda: launchers.MLServer(options.mlserver_venv),
        TRUSS: lambda: launchers.Truss(options.truss_venv),
        MOSEC: lambda: launchers.Mosec(options.mosec_venv),
        BARE_AIOHTTP: lambda: launchers.bare_aiohttp(options.python),
        BARE_GRPC: lambda: launchers.bare_grpc(options.python),
    }
    return [launchers.this_server(options.python), *(makers[name]() for name in names)]


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
    parser.add_argument("--alone", action="store_true", help="measure this server alone (and the bare applications)")
    for name, program in (
        ("torchserve", "TorchServe"),
        ("mlserver", "MLServer"),
        ("truss", "Truss"),
        ("mosec", "mosec"),
    ):
        parser.add_argument(
            f"--{name}-venv", type=Path, default=ROOT / f".{name}-venv", help=f"where {program} is installed"
        )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that runs this server (default: this one)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every round's values to FILE; figures in it that were not measured again stay, and are reported",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a report to FILE, and its chart beside it")
    return parser.parse_args()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _measure_and_print(figure: Figure, servers: list[Launcher], options: argparse.Namespace) -> FigureResult:
    if isinstance(figure, LoadFigure):
        values = _measure_load(figure, servers, options.rounds, options.seconds)
    elif isinstance(figure, StartFigure):
        values = _measure_starts(figure, servers, options.rounds)
    else:
        values = {OURS: _measure_scheduler(options.rounds)}
    for_the_value = isinstance(figure, SchedulerFigure) or (
        isinstance(figure, LoadFigure) and figure.goal_is_for_the_value
    )
    result = FigureResult(
        name=figure.name,
        rival=figure.rival,
        title=figure.title,
        unit=figure.unit,
        goal=figure.goal,
        higher_is_better=figure.higher_is_better,
        goal_is_for_the_value=for_the_value,
        values=values,
    )
    print(report.as_text(result), flush=True)
    return result


def _measure_load(figure: LoadFigure, started: Iterable[Launcher], rounds: int, seconds: int) -> dict[str, list[float]]:
    with ExitStack() as stack:
        up: list[Server] = []
        for launcher in started:
            server = stack.enter_context(Server(launcher, figure.model))
            figure.load.run(server, WARM_UP_SECONDS)
            server.suspend()
            up.append(server)
        values: dict[str, list[float]] = {server.launcher.name: [] for server in up}
        for number in range(rounds):
            for server in up if number % 2 == 0 else reversed(up):
                server.resume()
                values[server.launcher.name].append(figure.read(figure.load.run(server, seconds)))
                server.suspend()
        return values


def _measure_starts(figure: StartFigure, started: list[Launcher], rounds: int) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {launcher.name: [] for launcher in started}
    for number in range(rounds):
        for launcher in started if number % 2 == 0 else reversed(started):
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
