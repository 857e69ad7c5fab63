"""What operators ask for: how a configuration and models would fare, schemas of files, and what a store keeps.

`container` is what the image runs.
"""

from collections.abc import Sequence

from torchserve_py.plugin_api import Plugin, ReportOffer
from torchserve_py.plugins import plugins


def _schemas() -> Sequence[str]:
    """Return the files with a schema: the kernel's, then those of plugins."""
    return ("config.properties", "model-config", *(name for each in plugins() for name in each.schemas))


PLUGIN = Plugin(
    name="operator_tools",
    commands={"store": "torchserve_py.tools.operator_tools.store_command"},
    reports={
        "--print-config": ReportOffer(
            "print every setting and where its value comes from, start nothing",
            "torchserve_py.tools.operator_tools.print_config",
        ),
        "--check-config": ReportOffer(
            "report what of the configuration and the model store is ignored, wrong or different here, start nothing",
            "torchserve_py.tools.operator_tools.check_config",
        ),
        "--schema": ReportOffer(
            "print the JSON Schema of a file, for editors, start nothing",
            "torchserve_py.tools.operator_tools.json_schemas",
            _schemas,
        ),
    },
)
