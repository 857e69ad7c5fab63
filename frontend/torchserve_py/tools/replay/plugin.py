"""The command that sends the requests of journals to another version of their model."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(
    name="replay",
    commands={"replay": "torchserve_py.tools.replay.replay_command"},
)
