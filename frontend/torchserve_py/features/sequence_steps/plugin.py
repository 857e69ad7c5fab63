"""Steps of sequences count once; all of it is in the workers."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="sequence_steps", steps="ts.features.sequence_steps.opening")
