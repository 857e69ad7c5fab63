"""Unit names of metrics."""

#: Short unit name to the name that metrics are reported with.
UNITS: dict[str | None, str] = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    None: "unit",
    "": "unit",
}


class Units:
    """TorchServe's way to the same names: ``Units().units``."""

    def __init__(self) -> None:
        self.units = dict(UNITS)


def unit_name(unit: str | None) -> str:
    """Return the name that a metric in ``unit`` is reported with; an unknown unit is its own name."""
    return UNITS.get(unit) or str(unit)
