"""The arrays that handlers find in their rows."""

from typing import Any, Self

import numpy as np


class InputArray(np.ndarray[Any, Any]):
    """An array of an Open Inference input that is true, because it was sent, whatever it holds.

    Handlers written for TorchServe take ``row.get("data") or row.get("body")``, which numpy refuses for an array of
    several elements, and which passes over one that holds a single zero. Only the whole input is true in this sense:
    a part or a copy of it, and what is computed from it, is as true as numpy says.
    """

    _is_input = False

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Self:
        """Return ``array`` as an input, without copying it."""
        made = array.view(cls)
        made._is_input = True
        return made

    def __bool__(self) -> bool:
        return self._is_input or super().__bool__()
