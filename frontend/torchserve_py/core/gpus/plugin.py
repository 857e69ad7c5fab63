"""NVIDIA's GPUs."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="gpus", devices="torchserve_py.core.gpus.visible_devices")
