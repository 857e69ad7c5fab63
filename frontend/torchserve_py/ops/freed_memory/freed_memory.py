"""What the C library's allocator is told, where it takes that: to keep one arena, and to give freed memory back."""

import asyncio
import ctypes
from typing import Final

#: How often freed memory is given back to the system (seconds).
_INTERVAL: Final = 5.0
#: ``M_ARENA_MAX`` of <malloc.h>.
_ARENA_MAX: Final = -8


def share_one_arena() -> None:
    """Have all threads allocate memory in one arena, where the C library has several.

    What threads that decompress have freed at the end of an arena of their own is not given back by `malloc_trim`.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_ARENA_MAX, 1)


async def give_back_freed_memory() -> None:
    """Give freed memory back to the system from time to time; return at once where the C library cannot do that.

    The allocator keeps freed buffers (see `server_process`): after a flood of large bodies, more than a hundred
    megabytes. A server that is busy takes those it needs again, which costs it little.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_INTERVAL)
        await asyncio.to_thread(trim, 0)
