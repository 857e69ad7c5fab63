"""The first minute: a model is written and served by one command each."""

from torchserve_py.plugin_api import Plugin

PLUGIN = Plugin(
    name="quickstart",
    needs=("console", "keys", "log_files", "served_functions"),
    commands={
        "serve": "torchserve_py.features.quickstart.serve_command",
        "init": "torchserve_py.features.quickstart.init_command",
        "completion": "torchserve_py.features.quickstart.completion_command",
    },
)
