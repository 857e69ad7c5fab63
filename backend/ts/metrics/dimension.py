"""One dimension (label) of a metric."""

from typing import Any


class Dimension:
    """A dimension's name and its value."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def __repr__(self) -> str:
        return f"Dimension({self.name!r}, {self.value!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"Name": …, "Value": …}``."""
        return {"Name": self.name, "Value": self.value}
