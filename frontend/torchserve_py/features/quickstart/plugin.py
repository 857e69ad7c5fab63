"""The first minute: a model is written and served by one command each."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.features.quickstart.unloaded_door import UnloadedDoor

    return [DoorOffer("inference_address", UnloadedDoor)]


PLUGIN = Plugin(
    name="quickstart",
    needs=("console", "keys", "log_files", "served_functions", "workflows"),
    doors=_doors,
    commands={
        "serve": "torchserve_py.features.quickstart.serve_command",
        "init": "torchserve_py.features.quickstart.init_command",
        "completion": "torchserve_py.features.quickstart.completion_command",
    },
)
