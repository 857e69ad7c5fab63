"""The yardstick: a bare aiohttp echo server on uvloop, doing for a request only what any aiohttp server must.

python benchmarks/bare_aiohttp.py PORT
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop
from aiohttp import web


async def echo(request: web.BaseRequest) -> web.Response:
    """Answer with the request's own body."""
    return web.Response(body=await request.read())


async def serve(port: int) -> None:
    """Serve on the loopback address until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.ServerRunner(web.Server(echo))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
