"""Joins the metrics of several processes, each in Prometheus' text format, into one text.

Values are not summed: each series has a label that names its process. So Prometheus recognizes the counters of a
restarted process, which start from zero, and gauges need no rule for joining them.
"""

from collections.abc import Mapping
from typing import Final

#: The label that names the process; metrics of models are unlikely to use this name.
LABEL: Final = "ts_worker"

_COMMENTS: Final = ("# HELP ", "# TYPE ")


def merged(texts: Mapping[str, str]) -> str:
    """Return the metrics of all, by the name of each process, with the label `LABEL` in every series.

    A family of several processes appears once, as the format requires, with HELP and TYPE of the first process.
    """
    families: dict[str, tuple[dict[str, None], list[str]]] = {}
    for worker, text in texts.items():
        comments: dict[str, None] = {}
        series: list[str] = []
        own: set[str] = set()
        for line in text.split("\n"):
            if line.startswith(_COMMENTS):
                name = line.split(" ", 3)[2]
                if name not in own:
                    own.add(name)
                    is_new = name not in families
                    comments, series = families.setdefault(name, ({}, []))
                if is_new:
                    comments[line] = None
            elif line and not line.startswith("#"):
                series.append(_labelled(line, worker))
    lines = [line for comments, series in families.values() for line in (*comments, *series)]
    return "".join(f"{line}\n" for line in lines)


def _labelled(series: str, worker: str) -> str:
    """Return the line of a series with one label more."""
    label = f'{LABEL}="{worker}"'
    name, brace, rest = series.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, rest = series.partition(" ")
    return f"{name}{{{label}}} {rest}"
