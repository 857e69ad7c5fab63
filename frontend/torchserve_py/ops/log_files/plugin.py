"""TorchServe's log files, or the operator's configuration of Python's logging."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(name="log_files", logging="torchserve_py.ops.log_files.setup")
