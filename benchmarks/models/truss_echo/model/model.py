"""Answers with its input."""

from __future__ import annotations

from typing import Any


class Model:
    """The smallest Truss."""

    async def predict(self, model_input: Any) -> Any:
        """The input."""
        return model_input
