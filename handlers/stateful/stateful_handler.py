"""A running total per sequence: the smallest stateful handler.

A request carries a whole number; the response is the total of its sequence so far. ``0`` ends the sequence.

With continuous batching (``model-config-continuous.yaml``) an odd number also streams ten further responses, the total
plus 1, plus 2 ... plus 10, which leave the total as it is; ``-1`` is not added but cancels a stream that its sequence
is running. A request that is no whole number gets status 400 and changes nothing; its batch-mates are unaffected.

TorchServe takes the only class of this file as the handler, so the state is kept in plain mappings instead of classes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lru import LRU

if TYPE_CHECKING:
    from ts.context import Context

FURTHER_RESPONSES = 10
CANCEL = -1


class StatefulHandler:
    """Adds each number to the total of the sequence that it came with."""

    def initialize(self, context: Context) -> None:
        """Allocate room for as many sequences as the model's configuration allows on one worker."""
        config = context.model_yaml_config
        self.continuous = bool(config.get("continuousBatching", False))
        batch_rows = int(config.get("maxWorkers", 1)) * int(config.get("batchSize", 1))
        capacity = max(int(config.get("maxNumSequence", 1)), batch_rows)
        #: sequence id -> total. Bounded for servers without on_sequence_end: the least recently used are evicted.
        self.totals: LRU[str, int] = LRU(capacity)
        #: request id -> (sequence id, total when the stream began, further responses given), of the rows that stream
        self.streams: dict[str, tuple[str, int, int]] = {}

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Answer one batch: one row per request, and in continuous mode also the rows that still stream."""
        request_ids = [str(context.get_request_id(idx)) for idx in range(len(data))]
        # A stream whose client went away is simply missing from the next step.
        self.streams = {rid: self.streams[rid] for rid in request_ids if rid in self.streams}
        results = []
        for idx, (row, request_id) in enumerate(zip(data, request_ids, strict=True)):
            if request_id in self.streams:
                result = self._further_response(request_id)
            else:
                result = self._first_response(idx, row, request_id, context)
            results.append(result)
        if self.continuous:
            context.stopping_criteria = [partial(self._is_last_part, request_id) for request_id in request_ids]
        return results

    def on_sequence_end(self, sequence_id: str, reason: str) -> None:
        """Forget a sequence that has ended, for any reason. torchserve-py calls this; TorchServe has no such hook."""
        self.totals.pop(sequence_id, None)
        self._stop_streams(sequence_id)

    def _first_response(self, idx: int, row: dict[str, Any], request_id: str, context: Context) -> str:
        sequence_id = context.get_sequence_id(idx)
        if not sequence_id:
            return _bad_request(idx, context, f"No sequence id: send the header {context.header_key_sequence_id}.")
        # TorchServe does not tell the client a sequence id that it made up itself: the handler must.
        context.set_response_header(idx, context.header_key_sequence_id, sequence_id)
        try:
            number = _whole_number(row.get("data", row.get("body")))
        except ValueError as error:
            return _bad_request(idx, context, str(error))

        if _is_set(idx, context.header_key_sequence_start, context):
            self.totals.pop(sequence_id, None)
        total = self.totals.get(sequence_id, 0)
        if self.continuous and number == CANCEL:
            self._stop_streams(sequence_id)
            return str(total)
        total += number
        if number == 0:
            context.set_response_header(idx, context.header_key_sequence_end, sequence_id)
            self.on_sequence_end(sequence_id, "ended")
            return str(total)
        self.totals[sequence_id] = total
        if self.continuous and number % 2 == 1:
            self.streams[request_id] = (sequence_id, total, 0)
        return self._part(request_id, str(total))

    def _further_response(self, request_id: str) -> str:
        sequence_id, total, given = self.streams[request_id]
        if given >= FURTHER_RESPONSES:  # cancelled by a row before this one in the same step
            return ""
        self.streams[request_id] = (sequence_id, total, given + 1)
        return self._part(request_id, str(total + given + 1))

    def _part(self, request_id: str, text: str) -> str:
        """A part of a stream is a line, so that a client can tell the parts apart."""
        return f"{text}\n" if request_id in self.streams else text

    def _stop_streams(self, sequence_id: str) -> None:
        for request_id, (streaming_sequence, total, _) in self.streams.items():
            if streaming_sequence == sequence_id:
                self.streams[request_id] = (sequence_id, total, FURTHER_RESPONSES)

    def _is_last_part(self, request_id: str, _result: Any) -> bool | None:
        """True: it was the row's last part; False: more follow; None: it is the whole response."""
        stream = self.streams.get(request_id)
        return None if stream is None else stream[2] >= FURTHER_RESPONSES


def _is_set(idx: int, header: str, context: Context) -> bool:
    """Whether a request has the start or end header: the server takes no value but "true" for one."""
    return str(context.get_request_header(idx, header)).strip().lower() == "true"


def _whole_number(value: Any) -> int:
    """The number that a request carries, as text, bytes or JSON. Raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        text = value.decode() if isinstance(value, bytes | bytearray) else value
        if isinstance(text, str):
            return int(text)
    except ValueError:
        pass
    if value is None:  # a form, which is what `curl -d 5` sends if it is not told otherwise
        raise ValueError("Expected a whole number, such as 5, as the body. Send it with Content-Type: text/plain.")
    shown = repr(bytes(value) if isinstance(value, bytearray) else value)[:80]
    raise ValueError(f"Expected a whole number, such as 5, and got {shown}.")


def _bad_request(idx: int, context: Context, message: str) -> str:
    context.set_response_status(code=400, phrase="Bad Request", idx=idx)
    return message
