"""The command that sends the requests of journals to another version of their model."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(
    name="replay",
    needs=("grpc", "journal", "open_inference", "truss"),
    commands={"replay": "torchserve_py.features.replay.replay_command"},
)
