"""Metrics that handlers report, at `/metrics` and in the log of metrics."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="handler_metrics", handler_metrics="torchserve_py.ops.handler_metrics.custom_metrics")
