"""A comparison for people: lines on the terminal, and a Markdown page with a table, the machine's facts and a chart."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chart import Bar, draw
from benchmarks.results import OURS, YARDSTICKS, FigureResult, Results, Spread


def as_text(result: FigureResult) -> str:
    """One figure's lines for the terminal."""
    lines = [result.title]
    lines += [f"  {name:<14} {_with_spread(Spread.of(values), result.unit)}" for name, values in result.values.items()]
    ratio = result.ratio()
    if ratio is not None:
        lines.append(f"  {'ratio':<14} {_with_spread(ratio, '×')}   goal {_goal(result)}: {_verdict(result)}")
    elif result.is_met() is not None:
        lines.append(f"  {'goal':<14} {_goal(result)}: {_verdict(result)}")
    return "\n".join(lines)


def write_markdown(results: Results, path: Path) -> None:
    """Write the page to `path` and the chart beside it, with the suffix .svg. Replaces what was there."""
    chart = path.with_suffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    bars = [
        Bar(result.title, *_times_better(result, ratio))
        for result in results.figures
        if (ratio := result.ratio()) is not None
    ]
    if bars:
        chart.write_text(draw(bars))
    path.write_text(_page(results, chart.name if bars else None))


def _times_better(result: FigureResult, ratio: Spread) -> tuple[float, float]:
    """The ratio and its goal turned so that more is better."""
    if result.higher_is_better:
        return ratio.median, result.goal
    return 1 / ratio.median, 1 / result.goal


def _page(results: Results, chart: str | None) -> str:
    lines = [
        "# Benchmarks",
        "",
        f"`python -m benchmarks.compare` wrote this page on {results.when}. torchserve-py and the other server, each",
        "with its default settings, serve the same model on the same machine. While one is measured, the other is",
        f"suspended. They take turns for {results.rounds} rounds. A load runs {results.seconds} seconds. The load",
        "generators (wrk for HTTP, h2load for gRPC, one connection) share the cores with the server. The tables give",
        "the median of the rounds and, in brackets, the lowest and highest; the ratio is the median of their ratios.",
        "",
        "All Python servers run on the same interpreter. Whether it was built with profile-guided optimization matters",
        "little. Debian's build was, a version manager's build was not. On the former this server answers as many REST",
        "requests and steps as on the latter, and 1.1 times as many gRPC calls and stream chunks.",
        "",
        "The headers of each HTTP request differ from all others, as in real traffic. Token authorization and the",
        "access log are on if the server has them.",
        "",
    ]
    for rival in dict.fromkeys(result.rival for result in results.figures):
        of_rival = [result for result in results.figures if result.rival == rival]
        lines += _table(rival, of_rival)
    if chart:
        lines += [f"![How many times better than the other server, per figure]({chart})", ""]
    lines += _yardsticks(results)
    lines += ["## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in results.machine.items()]
    lines += [
        "",
        "## Run it yourself",
        "",
        "    scripts/install-torchserve      # the real TorchServe, in an environment of its own; needs Java",
        "    scripts/install-mlserver        # the real MLServer, in another one",
        "    scripts/install-truss           # the real Truss, in a third",
        "    scripts/install-mosec           # mosec, in a fourth",
        "    python -m benchmarks.compare --markdown docs/benchmarks.md",
        "",
        "`--only NAME` measures one figure, `--alone` this server alone, `--json FILE` keeps all values.",
        "",
    ]
    return "\n".join(lines)


def _table(rival: str | None, figures: list[FigureResult]) -> list[str]:
    if rival is None:
        head = ["## By itself", "", "| figure | torchserve-py | goal | |", "|---|---|---|---|"]
        return [
            *head,
            *(f"| {each.title} | {_value(each, OURS)} | {_goal(each)} | {_verdict(each)} |" for each in figures),
            "",
        ]
    head = [
        f"## Against {rival}",
        "",
        f"| figure | torchserve-py | {rival} | ratio | goal | |",
        "|---|---|---|---|---|---|",
    ]
    return [*head, *(_row(rival, each) for each in figures), ""]


def _row(rival: str, result: FigureResult) -> str:
    ratio = result.ratio()
    ratio_text = _with_spread(ratio, "×") if ratio is not None else "–"
    values = f"{_value(result, OURS)} | {_value(result, rival)}"
    return f"| {result.title} | {values} | {ratio_text} | {_goal(result)} | {_verdict(result)} |"


def _value(result: FigureResult, server: str) -> str:
    return _with_spread(Spread.of(result.values[server]), result.unit) if server in result.values else "–"


def _yardsticks(results: Results) -> list[str]:
    lines = []
    for result in results.figures:
        for name in YARDSTICKS:
            share = result.share_of(name)
            if share is not None:
                lines.append(
                    f"- {result.title}: {name} {_value(result, name)}; torchserve-py has {share.median:.2f} × that."
                )
    if not lines:
        return []
    return [
        "Bare applications, which do nothing but read the request and write the answer, are the yardstick:",
        "",
        *lines,
        "",
    ]


def _goal(result: FigureResult) -> str:
    unit = result.unit if result.goal_is_for_the_value else "×"
    return f"{'≥' if result.higher_is_better else '≤'} {result.goal:g} {unit}"


def _verdict(result: FigureResult) -> str:
    return {True: "met", False: "missed", None: "not compared"}[result.is_met()]


def _with_spread(spread: Spread, unit: str) -> str:
    return f"{_number(spread.median)} {unit} ({_number(spread.lowest)}–{_number(spread.highest)})"


def _number(value: float) -> str:
    """Three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
