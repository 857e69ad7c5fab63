"""A load, the workers that follow it and how long requests wait, over time, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

LEFT, WIDTH, RIGHT = 64, 680, 116
TOP, HEIGHT, GAP = 56, 120, 42
INK, GREY, LINES = "#1f2933", "#61707f", "#e3e8ee"
LOAD, WORKERS, WAIT = "#c9d6e2", "#2f7d5b", "#b9822f"


class Moment(NamedTuple):
    """What was so at one moment (seconds): requests per second, workers that are ready, seconds of the longest wait."""

    at: float
    rate: float
    workers: int
    wait: float


class Panel(NamedTuple):
    """One diagram: its title, the top of its scale, and where on the page it begins."""

    title: str
    highest: float
    top: float

    def y(self, value: float) -> float:
        """Where a value is on the page."""
        return self.top + HEIGHT * (1 - min(value, self.highest) / self.highest)


def draw(moments: Sequence[Moment], target_wait: float) -> str:
    """The picture, readable on a light and on a dark page; ``target_wait`` (seconds) is a line of its own."""
    last = moments[-1].at
    rates = Panel("requests per second", _round_up(max(each.rate for each in moments)), TOP)
    workers = Panel("workers", max(each.workers for each in moments) + 1, TOP + HEIGHT + GAP)
    waits = Panel("longest wait, seconds", _round_up(max(each.wait for each in moments)), TOP + 2 * (HEIGHT + GAP))
    width, height = LEFT + WIDTH + RIGHT, int(waits.top + HEIGHT + 44)

    def x(at: float) -> float:
        return LEFT + WIDTH * at / last

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="600" fill="{INK}">Workers follow the load</text>',
    ]
    for panel in (rates, workers, waits):
        parts += _frame(panel)
    parts += _seconds(x, last, waits.top + HEIGHT)
    area = " ".join(f"{x(each.at):.1f},{rates.y(each.rate):.1f}" for each in moments)
    bottom = f"{rates.y(0):.1f}"
    parts.append(f'<polygon points="{x(0):.1f},{bottom} {area} {x(last):.1f},{bottom}" fill="{LOAD}"/>')
    parts.append(_steps([(x(each.at), workers.y(each.workers)) for each in moments]))
    line = " ".join(f"{x(each.at):.1f},{waits.y(each.wait):.1f}" for each in moments)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{WAIT}" stroke-width="2"/>')
    y = waits.y(target_wait)
    parts.append(
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="{INK}" stroke-dasharray="4 4"/>'
    )
    parts.append(f'<text x="{LEFT + WIDTH + 8}" y="{y + 4:.1f}" fill="{INK}">target {target_wait:g} s</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _frame(panel: Panel) -> list[str]:
    parts = [f'<text x="{LEFT}" y="{panel.top - 10}" fill="{INK}">{panel.title}</text>']
    whole = panel.highest <= 8
    step = 1.0 if whole and panel.highest >= 3 else panel.highest / 4
    value = 0.0
    while value <= panel.highest + 1e-9:
        y = panel.y(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + WIDTH}" y2="{y:.1f}" stroke="{LINES}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{GREY}">{value:g}</text>')
        value += step
    return parts


def _seconds(x: Callable[[float], float], last: float, bottom: float) -> list[str]:
    return [
        f'<text x="{x(at):.1f}" y="{bottom + 20:.1f}" text-anchor="middle" fill="{GREY}">{at} s</text>'
        for at in range(0, int(last) + 1, 20)
    ]


def _steps(points: Sequence[tuple[float, float]]) -> str:
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    path += [f"H{x:.1f} V{y:.1f}" for x, y in points[1:]]
    return f'<path d="{" ".join(path)}" fill="none" stroke="{WORKERS}" stroke-width="2.5"/>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(value, 0.1)))
    return next(digit * power for digit in (1, 2, 4, 5, 10) if digit * power >= value)
