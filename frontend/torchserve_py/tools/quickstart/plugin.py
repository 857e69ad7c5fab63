"""The first minute: a model is written and served by one command each."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.tools.quickstart.unloaded_endpoints import UnloadedEndpoints

    return [EndpointsOffer("inference_address", UnloadedEndpoints)]


PLUGIN = Plugin(
    name="quickstart",
    endpoints=_endpoints,
    commands={
        "serve": "torchserve_py.tools.quickstart.serve_command",
        "init": "torchserve_py.tools.quickstart.init_command",
        "example": "torchserve_py.tools.quickstart.example_command",
        "completion": "torchserve_py.tools.quickstart.completion_command",
    },
)
