"""A recurrent network served as sessions: the hidden state lives per sequence, and all rows of a batch step together.

A request is one time step, a JSON list of numbers; the response is the network's output, ``{"output": [numbers]}``.
The rows of a batch belong to different sequences: their hidden states are stacked, the model runs once, and each
sequence gets its own row of the result back. A row that cannot be read gets status 400, its batch-mates are unaffected.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from lru import LRU

from ts.torch_handler.base_handler import BaseHandler

if TYPE_CHECKING:
    from ts.context import Context


class GruSessionHandler(BaseHandler):
    """Runs one step per request on the hidden state of the request's sequence."""

    def initialize(self, context: Context) -> None:
        """Load model.py and its weights as BaseHandler does, and make room for the sequences of one worker."""
        super().initialize(context)
        config = context.model_yaml_config
        batch_rows = int(config.get("maxWorkers", 1)) * int(config.get("batchSize", 1))
        #: sequence id -> hidden state [hidden_size]; bounded for servers that do not call on_sequence_end
        self.hidden: LRU[str, torch.Tensor] = LRU(max(int(config.get("maxNumSequence", 1)), batch_rows))

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """One step of every sequence in the batch. Returns one answer per row, in order."""
        answers: list[Any] = [None] * len(data)
        steps: list[tuple[int, str, list[float]]] = []
        for idx, row in enumerate(data):
            try:
                steps.append((idx, _sequence_id(idx, context), self._time_step(row)))
            except ValueError as error:
                context.set_response_status(code=400, phrase="Bad Request", idx=idx)
                answers[idx] = str(error)
        if steps:
            for (idx, sequence_id, _), output in zip(steps, self._step(steps, context), strict=True):
                answers[idx] = {"output": output}
                _set_response_headers(idx, sequence_id, context)
        return answers

    def on_sequence_end(self, sequence_id: str, reason: str) -> None:
        """Forget a sequence that is over. Called by torchserve-py; TorchServe has no such call."""
        self.hidden.pop(sequence_id, None)

    def _step(self, steps: list[tuple[int, str, list[float]]], context: Context) -> list[list[float]]:
        """Run the model once on the rows of all sequences; keep their next hidden states, return their outputs."""
        fresh = torch.zeros(self.model.hidden_size, device=self.device)
        for idx, sequence_id, _ in steps:
            if _is_set(idx, context.header_key_sequence_start, context):
                self.hidden.pop(sequence_id, None)
        hidden = torch.stack([self.hidden.get(sequence_id, fresh) for _, sequence_id, _ in steps])
        inputs = torch.tensor([values for _, _, values in steps], device=self.device)
        with torch.inference_mode():
            outputs, hidden = self.model(inputs, hidden)
        for (_, sequence_id, _), state in zip(steps, hidden, strict=True):
            self.hidden[sequence_id] = state.clone()  # a view would keep the whole batch's tensor alive
        rows: list[list[float]] = outputs.tolist()
        return rows

    def _time_step(self, row: dict[str, Any]) -> list[float]:
        """The numbers of one request. Raises ValueError for anything but a list of as many as the model takes."""
        value = row.get("data", row.get("body"))
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


def _sequence_id(idx: int, context: Context) -> str:
    sequence_id = context.get_sequence_id(idx)
    if not sequence_id:
        raise ValueError(f"No sequence id: send the header {context.header_key_sequence_id}.")
    return str(sequence_id)


def _is_set(idx: int, header: str, context: Context) -> bool:
    """Whether a request has the start or end header: the server takes no value but "true" for one."""
    return str(context.get_request_header(idx, header)).strip().lower() == "true"


def _set_response_headers(idx: int, sequence_id: str, context: Context) -> None:
    context.set_response_content_type(idx, "application/json")
    # TorchServe does not tell the client a sequence id that it made up itself: the handler must.
    context.set_response_header(idx, context.header_key_sequence_id, sequence_id)
    if _is_set(idx, context.header_key_sequence_end, context):
        context.set_response_header(idx, context.header_key_sequence_end, sequence_id)
