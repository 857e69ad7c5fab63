"""A tensor's data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field, RootModel

from ts.open_inference.unread import Unread


class TensorData(Unread, RootModel[list[Any] | Any]):
    """The elements of a tensor: a list, flat or nested; or whatever else JSON said."""

    root: list[Any] | Any = Field(..., title="TensorData")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.root)

    def __getitem__(self, index: Any) -> Any:
        return self.root[index]
