"""A stand-in for a model on an accelerator: each call takes `step_ms`, and no processor meanwhile.

The file `busy_file` holds the seconds that its calls have taken so far, as a double.
"""

import mmap
import struct
import time
from pathlib import Path
from typing import Any

_SECONDS = struct.Struct("d")


class DeviceHandler:
    """Answers each request with its own body."""

    def initialize(self, context: Any) -> None:
        """Map the file."""
        options = context.model_yaml_config["handler"]
        self.step = options["step_ms"] / 1000
        with Path(options["busy_file"]).open("r+b") as file:
            self.busy = mmap.mmap(file.fileno(), _SECONDS.size)

    def handle(self, data: list[Any], context: Any) -> list[bytes]:
        """Be busy for one step."""
        began = time.perf_counter()
        time.sleep(self.step)
        seconds = _SECONDS.unpack_from(self.busy)[0] + time.perf_counter() - began
        _SECONDS.pack_into(self.busy, 0, seconds)
        return [bytes(row.get("data") or row.get("body")) for row in data]
