"""A comparison for people: lines on the terminal, and a Markdown page with a table, the machine's facts and a chart."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chart import Bar, draw
from benchmarks.results import OURS, THEIRS, YARDSTICK, FigureResult, Results, Spread


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
        f"Written by `python -m benchmarks.compare` on {results.when}. torchserve-py and TorchServe 0.12, with its",
        "default settings, serve the same archives on the same machine; while one is measured the other is suspended.",
        f"They take turns for {results.rounds} rounds. A load runs {results.seconds} seconds; wrk shares the cores",
        "with the server. Given are the median of the rounds and, in brackets, the lowest and the highest; the ratio",
        "is the median of the rounds' ratios.",
        "",
        "| figure | torchserve-py | TorchServe 0.12 | ratio | goal | |",
        "|---|---|---|---|---|---|",
        *[_row(result) for result in results.figures],
        "",
    ]
    if chart:
        lines += [f"![How many times better than TorchServe, per figure]({chart})", ""]
    lines += _yardstick(results)
    lines += ["## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in results.machine.items()]
    lines += [
        "",
        "## Run it yourself",
        "",
        "    scripts/install-torchserve      # the real TorchServe, in an environment of its own; needs Java",
        "    python -m benchmarks.compare --markdown docs/benchmarks.md",
        "",
        "`--only NAME` measures one figure, `--no-torchserve` this server alone, `--json FILE` keeps all values.",
        "",
    ]
    return "\n".join(lines)


def _row(result: FigureResult) -> str:
    ours = _with_spread(Spread.of(result.values[OURS]), result.unit)
    theirs = _with_spread(Spread.of(result.values[THEIRS]), result.unit) if THEIRS in result.values else "–"
    ratio = result.ratio()
    ratio_text = _with_spread(ratio, "×") if ratio is not None else "–"
    return f"| {result.title} | {ours} | {theirs} | {ratio_text} | {_goal(result)} | {_verdict(result)} |"


def _yardstick(results: Results) -> list[str]:
    measured = [result for result in results.figures if YARDSTICK in result.values]
    if not measured:
        return []
    lines = ["A bare aiohttp application, which only reads the request and writes it back, is the yardstick:", ""]
    for result in measured:
        bare = Spread.of(result.values[YARDSTICK])
        share = Spread.of([a / b for a, b in zip(result.values[OURS], result.values[YARDSTICK], strict=True)])
        lines.append(
            f"- {result.title}: {_with_spread(bare, result.unit)}; torchserve-py has {share.median:.2f} × that."
        )
    return [*lines, ""]


def _goal(result: FigureResult) -> str:
    return f"{'≥' if result.higher_is_better else '≤'} {result.goal:g} ×"


def _verdict(result: FigureResult) -> str:
    return {True: "met", False: "missed", None: "not compared"}[result.is_met()]


def _with_spread(spread: Spread, unit: str) -> str:
    return f"{_number(spread.median)} {unit} ({_number(spread.lowest)}–{_number(spread.highest)})"


def _number(value: float) -> str:
    """Three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
