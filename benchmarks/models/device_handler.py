"""A stand-in for a model on an accelerator: each call takes `step_ms`, and no processor meanwhile.

The file `busy_file` holds the seconds that its calls have taken so far, as a double. An answer has `answer_bytes`, or
is as large as the request. With a `cache`, the model counts the steps of each sequence.
"""

import mmap
import struct
import time
from pathlib import Path
from typing import Any

from ts.sequence import SequenceCache

_SECONDS = struct.Struct("d")


class DeviceHandler:
    """Answers each request with its own body, or the first bytes of it."""

    def initialize(self, context: Any) -> None:
        """Map the file."""
        options = context.model_yaml_config["handler"]
        self.step = options["step_ms"] / 1000
        self.answer_bytes = options.get("answer_bytes")
        with Path(options["busy_file"]).open("r+b") as file:
            self.busy = mmap.mmap(file.fileno(), _SECONDS.size)
        self.counts = SequenceCache(context) if "cache" in options else None

    def handle(self, data: list[Any], context: Any) -> list[bytes]:
        """Be busy for one step."""
        began = time.perf_counter()
        time.sleep(self.step)
        seconds = _SECONDS.unpack_from(self.busy)[0] + time.perf_counter() - began
        _SECONDS.pack_into(self.busy, 0, seconds)
        if self.counts is not None:
            for index in range(len(data)):
                sequence_id = context.get_sequence_id(index)
                self.counts[sequence_id] = self.counts.get(sequence_id, 0) + 1
        return [bytes(memoryview(row.get("data") or row.get("body"))[: self.answer_bytes]) for row in data]
