"""Requests join a batch between two steps of a handler."""

from torchserve_py.plugin_api import CONTINUOUS, Plugin

PLUGIN = Plugin(name="continuous_batching", runtimes={CONTINUOUS: "ts.contracts.continuous_batching.continuous"})
