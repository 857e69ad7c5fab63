"""With `debug`, a person starts the workers, perhaps in a debugger."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="debugging", local_launcher="torchserve_py.core.debugging.debug_launcher")
