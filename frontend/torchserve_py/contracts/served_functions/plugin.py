"""Functions and classes that are decorated with `ts.serve` are models."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.contracts.served_functions.functions_endpoints import FunctionsEndpoints

    return [EndpointsOffer("inference_address", FunctionsEndpoints)]


PLUGIN = Plugin(name="served_functions", endpoints=_endpoints)
