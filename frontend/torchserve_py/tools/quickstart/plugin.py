"""The first minute: a model is written and served by one command each."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.tools.quickstart.unloaded_door import UnloadedDoor

    return [DoorOffer("inference_address", UnloadedDoor)]


PLUGIN = Plugin(
    name="quickstart",
    doors=_doors,
    commands={
        "serve": "torchserve_py.tools.quickstart.serve_command",
        "init": "torchserve_py.tools.quickstart.init_command",
        "completion": "torchserve_py.tools.quickstart.completion_command",
    },
)
