"""What operators ask for: how a configuration and models would fare, schemas of files, and what a store keeps.

`container` is what the image runs.
"""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="operator_tools", commands={"store": "torchserve_py.tools.operator_tools.store_command"})
