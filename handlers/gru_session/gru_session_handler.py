"""A recurrent network served as sessions: the hidden state lives per sequence, and all rows of a batch step together.

A request is one time step, a JSON list of numbers; the response is the network's output, ``{"output": [numbers]}``.
The rows of a batch belong to different sequences: their hidden states are gathered from the arena in one go, the model
runs once, and the next states go back in one go. A row that cannot be read gets status 400 alone.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch

from ts.sequence.arena import Arena, Field
from ts.torch_handler.base_handler import BaseHandler

if TYPE_CHECKING:
    from ts.context import Context


class GruSessionHandler(BaseHandler):
    """Runs one step per request on the hidden state of the request's sequence."""

    def initialize(self, context: Context) -> None:
        """Load model.py and its weights as BaseHandler does, and make room for the hidden states."""
        super().initialize(context)
        self.arena = Arena(context, {"hidden": Field((self.model.hidden_size,))}, device=self.device)

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """One step of every sequence in the batch. Returns one answer per row, in order."""
        answers: list[Any] = [None] * len(data)
        steps: dict[int, list[float]] = {}
        for idx in range(len(data)):
            try:
                steps[idx] = self._time_step(context.body(idx))
            except ValueError as error:
                context.fail(idx, str(error))
        for idx, output in zip(steps, self._step(steps, context), strict=True):
            answers[idx] = {"output": output}
            context.set_response_content_type(idx, "application/json")
        return answers

    def _step(self, steps: dict[int, list[float]], context: Context) -> list[list[float]]:
        """Run the model once on these rows; keep their next hidden states, return their outputs."""
        if not steps:
            return []
        hidden = self.arena.gather([context.state.get(idx) for idx in steps])["hidden"]
        inputs = torch.tensor(list(steps.values()), device=self.device)
        with torch.inference_mode():
            outputs, hidden = self.model(inputs, hidden)
        for idx, state in zip(steps, self.arena.scatter({"hidden": hidden}), strict=True):
            context.state[idx] = state
        rows: list[list[float]] = outputs.tolist()
        return rows

    def _time_step(self, value: Any) -> list[float]:
        """The numbers of one request. Raises ValueError for anything but a list of as many as the model takes."""
        if isinstance(value, str | bytes | bytearray):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ValueError(f"Expected a JSON list of numbers, and the body is not JSON: {error}.") from error
        if hasattr(value, "tolist"):  # an array, from a client of the Open Inference Protocol
            value = value.ravel().tolist()
        size = self.model.input_size
        if not isinstance(value, list) or len(value) != size or not all(_is_number(item) for item in value):
            raise ValueError(f"Expected a JSON list of {size} finite numbers, and got {str(value)[:80]}.")
        return [float(item) for item in value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
