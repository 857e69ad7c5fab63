"""Functions and classes that are decorated with `ts.serve` are models."""

from torchserve_py.plugin_api import Plugin, SourceOffer

PLUGIN = Plugin(
    name="served_functions",
    sources=(
        SourceOffer("torchserve_py.features.served_functions.function_source", "ts.features.served_functions.adapter"),
    ),
)
