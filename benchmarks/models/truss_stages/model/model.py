"""50 ms of waiting before 10 ms of computing, one request at a time: what waits must not hold up what computes."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Any

WAITS = 0.05  # seconds
COMPUTES = 0.01
BLOCK = bytes(1 << 16)


class Model:
    """Fetches, then computes on one device."""

    async def preprocess(self, model_input: Any) -> Any:
        """As if something were fetched."""
        await asyncio.sleep(WAITS)
        return model_input

    def predict(self, model_input: Any) -> Any:
        """As a device that is busy: the interpreter is free for others."""
        end = time.perf_counter() + COMPUTES
        while time.perf_counter() < end:
            zlib.crc32(BLOCK)
        return model_input
