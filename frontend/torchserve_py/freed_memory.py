"""Gives memory that the server has freed back to the system.

The allocator keeps freed buffers (see `server_process`): after a flood of large bodies, more than a hundred megabytes.
Every few seconds all of them are given back. A server that is busy takes those it needs again, which costs it little.
"""

import asyncio
import ctypes
from typing import Final

#: How often freed memory is given back (seconds).
_INTERVAL: Final = 5.0


async def give_back_now_and_then() -> None:
    """Give freed memory back from time to time, for ever; return at once where the C library cannot do that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_INTERVAL)
        await asyncio.to_thread(trim, 0)
