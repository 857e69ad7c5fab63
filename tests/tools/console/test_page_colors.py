"""The colors of the console: texts and the edges of controls can be told from what they stand on, dark and light."""

import re
from itertools import product
from pathlib import Path

import pytest

import torchserve_py.tools.console as console

STYLES = (Path(console.__file__).parent / "page" / "base.css").read_text(encoding="utf-8")
GROUNDS = ("ground", "card", "raised")
TEXTS = ("text", "muted", "accent", "good", "bad", "warm", "cool", "violet")


def colors(selector: str) -> dict[str, str]:
    """Return the colors that a rule of the style sheet gives names to."""
    rule = re.search(rf"^{re.escape(selector)} \{{(.*?)^\}}", STYLES, re.DOTALL | re.MULTILINE)
    assert rule is not None
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", rule[1]))


def luminance(color: str) -> float:
    shares = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors as WCAG defines it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'], ids=["light", "dark"])
def test_every_text_has_a_contrast_of_4_5_and_every_edge_one_of_3(selector: str) -> None:
    named = colors(selector)
    faint = [
        (name, ground, round(contrast(named[name], named[ground]), 2))
        for (names, least) in ((TEXTS, 4.5), (("edge",), 3.0))
        for name, ground in product(names, GROUNDS)
        if contrast(named[name], named[ground]) < least
    ]
    assert faint == []
    assert contrast(named["on-accent"], named["accent"]) >= 4.5
