"""Metrics as lines of logs, for ``metrics_mode`` ``log`` and ``legacy``."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="metric_log", metric_lines="torchserve_py.ops.metric_log.metric_log")
