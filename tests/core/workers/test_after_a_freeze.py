"""A server that was frozen gives others the time that it had no chance to hear them in: none of it counts.

The event loop does nothing at all for a while, which is as if the process were stopped.
"""

import asyncio
import time

from torchserve_py.core.workers.startup import Startup
from ts.protocol.messages import Loaded

LIMIT = 0.6


async def standstill() -> None:
    """The process is frozen for longer than every limit, and then there is nothing to read yet."""
    await asyncio.sleep(0.05)
    time.sleep(2 * LIMIT)
    await asyncio.sleep(0.05)


async def test_a_worker_may_still_load_its_model() -> None:
    startup = Startup("w", 1, asyncio.get_running_loop().create_future())
    loading = asyncio.ensure_future(startup.model(LIMIT))
    await standstill()
    startup.loaded(Loaded(ok=True, status=200, message="", traceback="", declares={}))
    assert (await loading)["ok"]
