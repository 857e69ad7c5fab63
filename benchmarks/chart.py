"""A bar chart as SVG text: how many times better than another server, one bar per figure, with the goal as a mark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

LABELS = 330  # width left of the bars
BARS = 430  # width of the longest bar's scale
ROW = 34
TOP = 56
BAR_HEIGHT = 16


@dataclass(frozen=True)
class Bar:
    """One figure: how many times better it is than the other server's, and how many times it should be."""

    label: str
    times: float
    goal: float


def draw(bars: list[Bar]) -> str:
    """The chart, readable on a light and on a dark page. Takes at least one bar."""
    top_of_scale = math.ceil(max(max(bar.times, bar.goal) for bar in bars))
    step = max(1, math.ceil(top_of_scale / 8))
    width, height = LABELS + BARS + 70, TOP + ROW * len(bars) + 16

    def x(times: float) -> float:
        return LABELS + BARS * times / top_of_scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        '<text x="16" y="24" font-size="15" font-weight="600" fill="#1f2933">Times better than the other server '
        '<tspan font-weight="400" fill="#61707f">(the mark is the goal)</tspan></text>',
    ]
    bottom = TOP + ROW * len(bars)
    for times in range(0, top_of_scale + 1, step):
        parts.append(f'<line x1="{x(times):.1f}" y1="{TOP - 8}" x2="{x(times):.1f}" y2="{bottom}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{x(times):.1f}" y="{TOP - 12}" text-anchor="middle" fill="#61707f">{times}×</text>')
    for row, bar in enumerate(bars):
        y = TOP + ROW * row + 6
        middle = y + BAR_HEIGHT * 0.8
        color = "#2f7d5b" if bar.times >= bar.goal else "#b9822f"
        parts.append(
            f'<text x="{LABELS - 12}" y="{middle:.1f}" text-anchor="end" fill="#1f2933">{escape(bar.label)}</text>'
        )
        parts.append(
            f'<rect x="{LABELS}" y="{y}" width="{x(bar.times) - LABELS:.1f}" height="{BAR_HEIGHT}" rx="2" '
            f'fill="{color}"/>'
        )
        parts.append(
            f'<line x1="{x(bar.goal):.1f}" y1="{y - 4}" x2="{x(bar.goal):.1f}" y2="{y + BAR_HEIGHT + 4}" '
            'stroke="#1f2933" stroke-width="2"/>'
        )
        text_x = max(x(bar.times), x(bar.goal)) + 8
        parts.append(f'<text x="{text_x:.1f}" y="{middle:.1f}" fill="#1f2933">{bar.times:.1f}×</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
