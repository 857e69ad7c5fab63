"""Turns between the clients of a model, and priorities."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="fair_use", order="torchserve_py.core.fair_use.fair_order")
