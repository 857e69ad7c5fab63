"""A tensor's data, which may be an array for as long as nobody asks for a list.

A megabyte of floats takes 15 ms to become a list and 30 ms to become an array again. Binary tensors arrive as bytes,
and most models want an array: so the runtime and the numpy codec hand arrays to each other, and the list that the API
promises is made when ``root`` is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field, RootModel

if TYPE_CHECKING:
    import numpy as np


class TensorData(RootModel[list[Any] | Any]):
    """The elements of a tensor: a list, flat or nested; or whatever else JSON said."""

    root: list[Any] | Any = Field(..., title="TensorData")

    @classmethod
    def of_array(cls, array: np.ndarray[Any, Any]) -> TensorData:
        """Return the data of an array of numbers or truth values; the caller does not change it any more."""
        data = cls.model_construct(root=None)
        del data.__dict__["root"]
        data.__dict__["_array"] = array
        return data

    @property
    def array(self) -> np.ndarray[Any, Any] | None:
        """The array, if the data are one and have not been read as a list, which may have been changed since."""
        return None if "root" in self.__dict__ else self.__dict__["_array"]

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute is there

        def __getattr__(self, name: str) -> Any:
            """Make the list when it is asked for: attributes that are there do not come here."""
            array = self.__dict__.get("_array")
            if name == "root" and array is not None:
                values = array.ravel().tolist()
                if array.dtype.kind == "f":
                    values = [None if value != value else value for value in values]  # noqa: PLR0124 - NaN is null
                self.__dict__["root"] = values
                return values
            return super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.root)

    def __getitem__(self, index: Any) -> Any:
        return self.root[index]

    def __len__(self) -> int:
        return len(self.root)
