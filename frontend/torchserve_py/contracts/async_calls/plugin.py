"""Handlers that are coroutines, and what runs other asynchronous code: each request is a call of its own."""

from torchserve_py.plugin_api import ASYNCHRONOUS, Plugin

PLUGIN = Plugin(name="async_calls", runtimes={ASYNCHRONOUS: "ts.contracts.async_calls.async_handler"})
