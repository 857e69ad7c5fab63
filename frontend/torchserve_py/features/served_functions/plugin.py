"""Functions and classes that are decorated with `ts.serve`; all of it is in the workers."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="served_functions", functions="ts.features.served_functions.served_function")
