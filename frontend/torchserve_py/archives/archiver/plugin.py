"""Archives are made: the command is an entry point of the package, so the server needs nothing of this."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="archiver")
